//! Helpers of the generated C: plain C files of `static` functions, of which a program holds only those it uses.
//!
//! A file is read in blocks: text between blank lines outside of braces, with the comment above it. Names start with
//! `mithril_` or `MITHRIL_`. The functions of [`GENERIC_FILES`] are written for `float` and end in `_f32`; those for
//! `double`, `int64_t` and `uint64_t` (`_f64`, `_i64`, `_u64`) have the same text with other types, unless they are written out too.

use std::sync::LazyLock;

use rustc_hash::{FxHashMap, FxHashSet};

/// Files in which every function is written out; what others use comes first.
const FILES: &[&str] = &[
    include_str!("once.c"),
    include_str!("error.c"),
    include_str!("index.c"),
    include_str!("threads.c"),
    include_str!("clock.c"),
    include_str!("arguments.c"),
    include_str!("mesh.c"),
    include_str!("math.c"),
    include_str!("trigonometry.c"),
    include_str!("power.c"),
    include_str!("half.c"),
    include_str!("rank.c"),
    include_str!("integer.c"),
    include_str!("random.c"),
    include_str!("linalg.c"),
    include_str!("factor.c"),
];

/// Files whose functions are written for `float` and used for `double` and `int64_t` too.
const GENERIC_FILES: &[&str] = &[
    include_str!("sort.c"),
    include_str!("scan.c"),
    include_str!("scatter.c"),
    include_str!("fft.c"),
    include_str!("fft_lines.c"),
];

/// All helpers.
pub static PRELUDE: LazyLock<Prelude> = LazyLock::new(|| Prelude::parse(FILES, GENERIC_FILES));

/// The helpers of the C target.
#[derive(Debug)]
pub struct Prelude {
    blocks: Vec<Block>,
    by_name: FxHashMap<String, usize>,
}

/// A top-level definition with the comment above it.
#[derive(Debug)]
struct Block {
    text: String,
    names: Vec<String>,
    needs: Vec<usize>,
}

impl Prelude {
    /// Splits files into their definitions.
    pub fn parse(files: &[&str], generic: &[&str]) -> Self {
        let mut blocks: Vec<Block> = files.iter().flat_map(|file| split(file)).collect();
        blocks.extend(generic.iter().flat_map(|file| instances(split(file))));
        let mut by_name = FxHashMap::default();
        for (i, block) in blocks.iter().enumerate() {
            for name in &block.names {
                by_name.entry(name.clone()).or_insert(i);
            }
        }
        for (i, block) in blocks.iter_mut().enumerate() {
            block.needs =
                words(&block.text).filter_map(|w| by_name.get(w).copied()).filter(|&n| n != i).collect();
            block.needs.sort_unstable();
            block.needs.dedup();
        }
        Self { blocks, by_name }
    }
    /// The definitions of these helpers and of all that they use, in the order in which they are written.
    pub fn choose<'a>(&'a self, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
        let mut stack: Vec<usize> = names.into_iter().filter_map(|n| self.by_name.get(n).copied()).collect();
        let mut seen: FxHashSet<usize> = FxHashSet::default();
        while let Some(i) = stack.pop() {
            if seen.insert(i) {
                stack.extend(&self.blocks[i].needs);
            }
        }
        let chosen = self.blocks.iter().enumerate().filter(|(i, _)| seen.contains(i));
        chosen.map(|(_, block)| block.text.as_str()).collect()
    }
}

/// The definitions of a file.
fn split(file: &str) -> Vec<Block> {
    let mut texts = vec![String::new()];
    let (mut braces, mut conditions) = (0_i64, 0_i64);
    for line in file.lines() {
        let open = texts.len() - 1;
        if line.trim().is_empty() && braces == 0 && conditions == 0 {
            texts.push(String::new());
            continue;
        }
        braces += line.matches('{').count() as i64 - line.matches('}').count() as i64;
        conditions += i64::from(line.starts_with("#if")) - i64::from(line.starts_with("#endif"));
        texts[open].push_str(line);
        texts[open].push('\n');
    }
    let block =
        |text: String| Block { names: defined(&text), text: text.trim_end().to_owned(), needs: vec![] };
    texts.into_iter().map(block).filter(|block| !block.names.is_empty()).collect()
}

/// The names that a block defines.
fn defined(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut in_comment = false;
    let mut in_enum = false;
    for line in text.lines() {
        let starts_comment = line.trim_start().starts_with("/*");
        if in_comment || starts_comment {
            in_comment = !line.contains("*/");
            continue;
        }
        in_enum |= line.starts_with("enum");
        let head = line.split("/*").next().unwrap_or(line);
        if let Some(rest) = head.strip_prefix("#define ") {
            names.extend(words(rest).next().map(str::to_owned));
        } else if in_enum {
            names.extend(words(head).filter(|w| w.starts_with("MITHRIL_")).map(str::to_owned));
        } else if !head.starts_with([' ', '\t', '#', '}']) {
            let head = head.split('=').next().unwrap_or(head);
            let own = |w: &&str| w.starts_with("mithril_") || w.starts_with("MITHRIL_");
            let called = words(head).filter(own).find(|w| head.contains(&format!("{w}(")));
            names.extend(called.or_else(|| words(head).filter(own).last()).map(str::to_owned));
        }
        in_enum &= !line.contains('}');
    }
    // A macro may have a definition for each compiler.
    names.dedup();
    names
}

/// The types other than `float` of generic functions: their suffix, the type, and that of sums.
const OTHERS: [(&str, &str, &str); 3] =
    [("_f64", "double", "double"), ("_i64", "int64_t", "uint64_t"), ("_u64", "uint64_t", "uint64_t")];

/// Blocks that are written for `float`, followed by those for the other types.
fn instances(written: Vec<Block>) -> Vec<Block> {
    let names: FxHashSet<String> = written.iter().flat_map(|b| b.names.iter().cloned()).collect();
    let mut all = Vec::new();
    for block in written {
        let others: Vec<Block> = OTHERS
            .into_iter()
            .map(|(suffix, float, wide)| instance(&block, suffix, float, wide))
            .filter(|other| other.names != block.names && other.names.iter().all(|n| !names.contains(n)))
            .collect();
        all.push(block);
        all.extend(others);
    }
    all
}

/// A block written for `float` and sums in `double`, for other types. Sums of integers are unsigned: they wrap around.
fn instance(block: &Block, suffix: &str, float: &str, wide: &str) -> Block {
    let mut text = String::new();
    let mut rest = block.text.as_str();
    while let Some(start) = rest.find(is_word) {
        let (before, tail) = rest.split_at(start);
        let (word, tail) = tail.split_at(tail.find(|c| !is_word(c)).unwrap_or(tail.len()));
        text.push_str(before);
        text.push_str(&match word {
            "float" => float.to_owned(),
            "double" => wide.to_owned(),
            word => word.strip_suffix("_f32").map_or(word.to_owned(), |stem| format!("{stem}{suffix}")),
        });
        rest = tail;
    }
    text.push_str(rest);
    let names = block.names.iter().map(|n| n.replace("_f32", suffix)).collect();
    Block { text, names, needs: vec![] }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_word(c)).filter(|w| w.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/* What this\n * is for. */\n\n/* Half. */\n#define MITHRIL_HALF 0.5f\n\n\
        typedef struct mithril_pair { float a, b; } mithril_pair;\n\n\
        /* The mean. */\nstatic float mithril_mean(mithril_pair x) {\n  float sum = x.a + x.b;\n\n  \
        return sum * MITHRIL_HALF;\n}\n\nstatic int mithril_one(void) { return 1; }\n";

    const GENERIC: &str = "static int mithril_odd_f32(float x) { return x != x; }\n\n\
        static int mithril_odd_i64(int64_t x) { return x & 1; }\n\n\
        static float mithril_add_f32(float a, double b) { return mithril_odd_f32(a) ? a : (float)(a + b); }\n";

    #[test]
    fn takes_what_is_used_and_no_more() {
        let prelude = Prelude::parse(&[FILE], &[]);
        let chosen = prelude.choose(["mithril_mean"]).join("\n\n");
        let start = FILE.find("/* Half").unwrap();
        let end = FILE.find("\n\nstatic int mithril_one").unwrap();
        assert_eq!(chosen, FILE[start..end]);
        assert_eq!(prelude.choose(["mithril_one"]), ["static int mithril_one(void) { return 1; }"]);
    }

    #[test]
    fn generic_functions_have_instances() {
        let prelude = Prelude::parse(&[], &[GENERIC]);
        assert_eq!(
            prelude.choose(["mithril_add_i64"]),
            [
                "static int mithril_odd_i64(int64_t x) { return x & 1; }",
                "static int64_t mithril_add_i64(int64_t a, uint64_t b) \
                 { return mithril_odd_i64(a) ? a : (int64_t)(a + b); }",
            ]
        );
        assert_eq!(
            prelude.choose(["mithril_odd_f64"]).concat(),
            "static int mithril_odd_f64(double x) { return x != x; }"
        );
    }

    /// A helper file that nobody lists would only be noticed by whoever runs the code.
    #[test]
    fn every_file_is_listed_and_names_are_unique() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/c/prelude");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "c") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let is_listed = FILES.iter().chain(GENERIC_FILES).any(|file| *file == text);
            assert!(is_listed, "{} is not listed", path.display());
            count += 1;
        }
        assert_eq!(count, FILES.len() + GENERIC_FILES.len());
        let mut names: Vec<&str> = PRELUDE.blocks.iter().flat_map(|b| &b.names).map(|n| &**n).collect();
        names.sort_unstable();
        let twice: Vec<&str> =
            names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
        assert!(twice.is_empty(), "helpers that are there twice: {twice:?}");
        let own = |n: &&&str| n.starts_with("mithril_") || n.starts_with("MITHRIL_");
        assert_eq!(names.iter().find(|n| !own(n)), None, "helpers start with mithril_");
    }
}
