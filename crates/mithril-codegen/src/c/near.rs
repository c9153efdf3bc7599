//! Functions that are quick for most arguments and slow for a few, such as a sine, which is hard to compute for large
//! angles only. Loops have no branch inside, so that a compiler makes vectors of them: they are written twice. The first
//! time every argument is taken as one of the many, and it is noted if one is not; then the second ones do it again.

use std::fmt::Write as _;

use mithril_ir::loops::Expr;

use super::prelude::PRELUDE;
use super::program::{Nest, Step};

/// Loops of fewer elements are not written twice.
const FEWEST: i64 = 256;

/// What says that an argument is not one of the many; the namer knows the word as taken.
const FAR: &str = "far";

/// What stands between the quick loops and the others.
pub const AGAIN: &str = "    if (!far) return;";

/// The lines of a step's loops, with the quick ones first where that is worth it and may be: loops that add to what they
/// have written, or write where they read, cannot be done again.
pub fn quick_first(step: &Step, nest: &Nest, lines: Vec<String>) -> Vec<String> {
    let is_large = nest.vars.iter().map(|v| v.size).product::<i64>() >= FEWEST;
    if !is_large || step.reads().contains(&nest.to) || has_sum(&nest.value) {
        return lines;
    }
    let quick: Vec<String> = lines.iter().map(|line| quick(line)).collect();
    if quick == lines {
        return lines;
    }
    let mut found = vec![
        format!("    uint32_t {FAR} = 0; /* not 0: a number is beyond what these loops can do */"),
        "    {".into(),
    ];
    found.extend(quick.iter().map(|line| format!("    {line}")));
    found.extend(["    }".into(), AGAIN.into()]);
    found.extend(lines);
    found
}

fn has_sum(e: &Expr) -> bool {
    matches!(e, Expr::Reduce { .. }) || e.children().into_iter().any(has_sum)
}

/// A line with the quick functions that the prelude has: `mithril_<name>_if_near_f32(&far, x)` for `mithril_<name>_f32(x)`.
fn quick(line: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = String::new();
    let mut rest = line;
    while let Some(start) = rest.find("mithril_") {
        let (before, from) = rest.split_at(start);
        let (word, after) = from.split_at(from.find(|c| !is_word(c)).unwrap_or(from.len()));
        out.push_str(before);
        let other = word.strip_suffix("_f32").map(|stem| format!("{stem}_if_near_f32"));
        let known = other.filter(|name| PRELUDE.has(name));
        if let (Some(name), Some(arguments)) = (known, after.strip_prefix('(')) {
            let _ = write!(out, "{name}(&{FAR}, ");
            rest = arguments;
        } else {
            out.push_str(word);
            rest = after;
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::quick;

    #[test]
    fn quick_functions_take_the_place_of_those_that_have_one() {
        let line = "y[i] = mithril_sin_f32(mithril_exp_f32(x[i])) * mithril_cos_f64(z[i]);";
        let wanted = "y[i] = mithril_sin_if_near_f32(&far, mithril_exp_f32(x[i])) * mithril_cos_f64(z[i]);";
        assert_eq!(quick(line), wanted);
    }
}
