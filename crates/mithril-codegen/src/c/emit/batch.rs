//! The function that walks through any number of rows in blocks of those that the program computes.

use std::fmt::Write as _;

use crate::c::analysis::batch::Rows;
use crate::c::syntax::simplify::simplify;
use crate::c::syntax::wrap::wrap;

/// Adds to C and header of a program of `block` rows what takes any number of them.
pub fn extend(c: &mut String, h: &mut String, prefix: &str, block: usize, rows: &Rows) {
    c.push_str(&wrap(&simplify(&functions(prefix, block, rows))));
    let end = h.rfind("\n#ifdef __cplusplus\n}").unwrap_or(h.len());
    h.insert_str(end, &declarations(prefix, block, spare(block, rows)));
    *h = h.replacen("#include <stddef.h>\n", "#include <stddef.h>\n#include <stdint.h>\n", 1);
}

/// Bytes of a block of rows of all inputs and outputs, for the last rows.
fn spare(block: usize, rows: &Rows) -> usize {
    rows.inputs.iter().chain(&rows.outputs).flatten().map(|n| (n * block).next_multiple_of(64)).sum()
}

fn declarations(prefix: &str, block: usize, spare: usize) -> String {
    format!(
        "\n/* {prefix}_run computes {block} rows. Any number of rows, of which there are {block} at a time: inputs and outputs hold\n   \
         so many, the arena has {prefix}_batch_arena_bytes. 0, or an error code. */\n\
         size_t {prefix}_batch_arena_bytes(int threads);\n\
         int {prefix}_run_batch(const void *const inputs[], void *const outputs[], int64_t batch, const void *packed,\n\
         {:indent$}void *arena, const mithril_pool *pool);\n\
         #define {upper}_BATCH_ARENA_BYTES (({upper}_ARENA_BYTES + 63) / 64 * 64 + {spare})\n",
        "",
        indent = prefix.len() + 15,
        upper = prefix.to_ascii_uppercase()
    )
}

fn functions(prefix: &str, block: usize, rows: &Rows) -> String {
    let numbers = |list: &[Option<usize>]| {
        let all: Vec<String> = list.iter().map(|n| n.unwrap_or(0).to_string()).collect();
        if all.is_empty() { "0".to_owned() } else { all.join(", ") }
    };
    let text = include_str!("batch.c");
    let words = [
        ("prefix", prefix.to_owned()),
        ("block", block.to_string()),
        ("inputs", rows.inputs.len().to_string()),
        ("outputs", rows.outputs.len().to_string()),
        ("input_count", rows.inputs.len().max(1).to_string()),
        ("output_count", rows.outputs.len().max(1).to_string()),
        ("input_rows", numbers(&rows.inputs)),
        ("output_rows", numbers(&rows.outputs)),
        ("spare", spare(block, rows).to_string()),
    ];
    let mut out = String::new();
    let _ =
        write!(out, "\n{}", words.iter().fold(text.to_owned(), |t, (k, v)| t.replace(&format!("@{k}@"), v)));
    out
}
