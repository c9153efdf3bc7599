//! Helpers of the generated code: plain Python functions, of which a module holds only those it uses.

use rustc_hash::{FxHashMap, FxHashSet};

/// Helper files for NumPy, one per family of ops; a file may use helpers of all others.
pub const NUMPY_FILES: &[&str] = &[
    include_str!("prelude/numpy_activation.py"),
    include_str!("prelude/numpy_conv.py"),
    include_str!("prelude/numpy_elementwise.py"),
    include_str!("prelude/numpy_index.py"),
    include_str!("prelude/numpy_linalg.py"),
    include_str!("prelude/numpy_movement.py"),
    include_str!("prelude/numpy_norm.py"),
    include_str!("prelude/numpy_pool.py"),
    include_str!("prelude/numpy_quantized.py"),
    include_str!("prelude/numpy_random.py"),
    include_str!("prelude/numpy_recurrent.py"),
    include_str!("prelude/numpy_reduce.py"),
    include_str!("prelude/numpy_signal.py"),
];
/// Helper files for PyTorch.
pub const TORCH_FILES: &[&str] = &[
    include_str!("prelude/torch_conv.py"),
    include_str!("prelude/torch_elementwise.py"),
    include_str!("prelude/torch_loss.py"),
    include_str!("prelude/torch_movement.py"),
    include_str!("prelude/torch_norm.py"),
    include_str!("prelude/torch_quantized.py"),
    include_str!("prelude/torch_random.py"),
    include_str!("prelude/torch_recurrent.py"),
    include_str!("prelude/torch_reduce.py"),
];
/// Helper files for JAX.
pub const JAX_FILES: &[&str] = &[
    include_str!("prelude/jax_collective.py"),
    include_str!("prelude/jax_elementwise.py"),
    include_str!("prelude/jax_function.py"),
    include_str!("prelude/jax_loop.py"),
    include_str!("prelude/jax_loss.py"),
    include_str!("prelude/jax_movement.py"),
    include_str!("prelude/jax_pool.py"),
    include_str!("prelude/jax_quantized.py"),
    include_str!("prelude/jax_recurrent.py"),
    include_str!("prelude/jax_reduce.py"),
    include_str!("prelude/jax_signal.py"),
];
/// Helper files for MLX; the first is used by others while they are loaded.
pub const MLX_FILES: &[&str] = &[
    include_str!("prelude/mlx_gradient.py"),
    include_str!("prelude/mlx_elementwise.py"),
    include_str!("prelude/mlx_function.py"),
    include_str!("prelude/mlx_activation.py"),
    include_str!("prelude/mlx_conv.py"),
    include_str!("prelude/mlx_linalg.py"),
    include_str!("prelude/mlx_loss.py"),
    include_str!("prelude/mlx_movement.py"),
    include_str!("prelude/mlx_pool.py"),
    include_str!("prelude/mlx_recurrent.py"),
    include_str!("prelude/mlx_reduce.py"),
    include_str!("prelude/mlx_signal.py"),
];

/// Helper files of several targets, in which `xp` stands for the array module.
const COMMON_FILES: &[&str] = &[
    include_str!("prelude/common_function.py"),
    include_str!("prelude/common_linalg.py"),
    include_str!("prelude/common_recurrent.py"),
];

/// The helpers of a target.
#[derive(Debug)]
pub struct Prelude {
    blocks: Vec<Block>,
    by_name: FxHashMap<String, usize>,
}

/// A top-level statement of a helper file with the comments above it.
#[derive(Debug)]
struct Block {
    text: String,
    names: Vec<String>,
    is_import: bool,
    needs: Vec<usize>,
}

/// Helpers chosen for a module, in the order in which they are written.
#[derive(Debug, Default)]
pub struct Chosen<'a> {
    /// Import statements.
    pub imports: Vec<&'a str>,
    /// Constants and functions.
    pub blocks: Vec<&'a str>,
}

impl Prelude {
    /// Splits files into their top-level statements.
    pub fn parse(files: &[&str]) -> Self {
        let mut blocks: Vec<Block> = files.iter().flat_map(|file| split(file)).collect();
        let mut by_name = FxHashMap::default();
        for (i, block) in blocks.iter().enumerate() {
            for name in &block.names {
                // A helper of the target stands for one that others have in common.
                by_name.insert(name.clone(), i);
            }
        }
        for (i, block) in blocks.iter_mut().enumerate() {
            let mut needs: Vec<usize> =
                words(&block.text).filter_map(|w| by_name.get(w).copied()).filter(|&n| n != i).collect();
            needs.sort_unstable();
            needs.dedup();
            block.needs = needs;
        }
        Self { blocks, by_name }
    }
    /// As [`Prelude::parse`], with the helpers that targets have in common, written for the array module `xp`.
    pub fn with_common(files: &[&str], xp: &str) -> Self {
        let common: Vec<String> =
            COMMON_FILES.iter().map(|file| file.replace("xp.", &format!("{xp}."))).collect();
        let all: Vec<&str> = common.iter().map(String::as_str).chain(files.iter().copied()).collect();
        Self::parse(&all)
    }
    /// Whether there is a helper of that name.
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }
    /// Names of all helpers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.blocks.iter().flat_map(|b| b.names.iter().map(String::as_str))
    }
    /// These helpers and all that they use.
    pub fn choose<'a>(&'a self, names: impl IntoIterator<Item = &'a str>) -> Chosen<'a> {
        let mut stack: Vec<usize> = names.into_iter().filter_map(|n| self.by_name.get(n).copied()).collect();
        let mut seen: FxHashSet<usize> = FxHashSet::default();
        while let Some(i) = stack.pop() {
            if seen.insert(i) {
                stack.extend(&self.blocks[i].needs);
            }
        }
        let mut chosen = Chosen::default();
        for (_, block) in self.blocks.iter().enumerate().filter(|(i, _)| seen.contains(i)) {
            if block.is_import {
                chosen.imports.push(&block.text);
            } else {
                chosen.blocks.push(&block.text);
            }
        }
        chosen.imports.sort_unstable();
        chosen.imports.dedup();
        chosen
    }
}

fn split(file: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut comments = String::new();
    let mut is_open = false;
    let mut in_docstring = false;
    for line in file.lines() {
        let quotes = line.matches("\"\"\"").count();
        if in_docstring || (!line.starts_with([' ', '\t']) && line.starts_with("\"\"\"")) {
            in_docstring ^= quotes % 2 == 1;
            is_open = false;
            continue;
        }
        if line.starts_with('#') {
            comments.push_str(line.trim_end());
            comments.push('\n');
            is_open = false;
        } else if line.trim().is_empty() {
            if let Some(block) = blocks.last_mut().filter(|_| is_open) {
                block.text.push('\n');
            }
            comments.clear();
        } else if line.starts_with([' ', '\t', ')', ']', '}']) || after_decorator(&blocks, is_open) {
            if let Some(block) = blocks.last_mut() {
                block.names.extend(defined(line).filter(|_| block.names.is_empty()).into_iter().flatten());
                block.text.push_str(line.trim_end());
                block.text.push('\n');
            }
        } else {
            let is_import = line.starts_with("import ") || line.starts_with("from ");
            let names = defined(line).unwrap_or_default();
            let text = format!("{}{}\n", std::mem::take(&mut comments), line.trim_end());
            blocks.push(Block { text, names, is_import, needs: Vec::new() });
            is_open = true;
        }
    }
    for block in &mut blocks {
        block.text.truncate(block.text.trim_end().len());
    }
    blocks
}

fn after_decorator(blocks: &[Block], is_open: bool) -> bool {
    is_open && blocks.last().is_some_and(|b| b.text.lines().last().is_some_and(|l| l.starts_with('@')))
}

/// Names that a top-level line binds.
fn defined(line: &str) -> Option<Vec<String>> {
    let names = |text: &str| {
        text.split(',').map(|part| part.rsplit(" as ").next().unwrap_or(part).trim().to_owned()).collect()
    };
    if line.starts_with([' ', '\t', '@']) {
        return None;
    }
    if let Some(rest) = line.strip_prefix("def ").or(line.strip_prefix("class ")) {
        let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        return Some(vec![rest[..end].to_owned()]);
    }
    if let Some(rest) = line.strip_prefix("import ") {
        return Some(names(rest));
    }
    if line.starts_with("from ") {
        return Some(names(line.split(" import ").nth(1)?));
    }
    let (left, _) = line.split_once('=')?;
    Some(names(left.split(':').next().unwrap_or(left)))
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The identifiers in a text.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_word(c)).filter(|w| w.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\"\"\"What this\nfile is for.\"\"\"\n\nimport math\nimport numpy as np\n\n\n# Half.\n_HALF = (\n    0.5,\n)\n\n\ndef _first(x):\n    return _HALF[0] * x\n\n\n# About the\n# second.\ndef _second(x):\n    y = math.floor(x)\n\n    return _first(y)\n\n\ndef _other(x):\n    return x\n";

    #[test]
    fn takes_what_is_used_and_no_more() {
        let prelude = Prelude::parse(&[FILE]);
        let chosen = prelude.choose(["_second"]);
        assert_eq!(chosen.imports, ["import math"]);
        assert_eq!(
            chosen.blocks,
            [
                "# Half.\n_HALF = (\n    0.5,\n)",
                "def _first(x):\n    return _HALF[0] * x",
                "# About the\n# second.\ndef _second(x):\n    y = math.floor(x)\n\n    return _first(y)",
            ]
        );
        assert_eq!(prelude.choose(["_other"]).blocks, ["def _other(x):\n    return x"]);
    }

    /// A helper file that nobody lists would only be noticed by whoever runs the code.
    #[test]
    fn every_file_is_listed_and_names_are_unique() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/python/prelude");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let lists = [COMMON_FILES, NUMPY_FILES, TORCH_FILES, JAX_FILES, MLX_FILES];
            assert!(lists.concat().contains(&text.as_str()), "{} is not listed", path.display());
            count += 1;
        }
        // A helper of a target may stand for one of the common files.
        for files in [COMMON_FILES, NUMPY_FILES, TORCH_FILES, JAX_FILES, MLX_FILES] {
            count -= files.len();
            let prelude = Prelude::parse(files);
            let mut names: Vec<&str> =
                prelude.blocks.iter().filter(|b| !b.is_import).flat_map(|b| &b.names).map(|n| &**n).collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "two helpers have one name");
            assert!(names.iter().all(|n| n.starts_with('_')), "helpers start with an underscore");
        }
        assert_eq!(count, 0, "a file is listed twice");
    }
}
