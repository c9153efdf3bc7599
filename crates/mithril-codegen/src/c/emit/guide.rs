//! Comments of a generated file: the one at its top, which says what its parts are, and those of the functions of single steps.

use crate::c::emit::fast_path;
use crate::c::ir::expr::Expr;
use crate::c::ir::program::{KernelProgram, KernelStep, KernelWork, Nest};
use crate::c::request::Request;
use crate::c::syntax::comment::comment;
use crate::c::syntax::expr::{MARK, MARK_END};
use crate::c::syntax::wrap::WIDTH;

/// Where the explanations of a list begin.
const COLUMN: usize = 18;

/// The comment at the top of the file: where to start reading, and how tensors are laid out; `parallel`: whether threads
/// divide the steps.
pub fn guide(program: &KernelProgram, request: &Request, parallel: bool) -> String {
    let mut out = String::from("/* The parts of this file, from its end:\n");
    for (name, text) in parts(program, request, parallel) {
        out.push_str(&entry(&name, &text));
    }
    if program.buffers.iter().any(|b| b.blocks.is_some()) {
        let lanes = request.target.lanes;
        let text = format!(
            "Blocked layout (NCHWc): temporaries between convolutions are stored as [images][channels / \
             {lanes}][rows][pixels][{lanes}], volumes as [images][frames][channels / {lanes}][rows][pixels][{lanes}], with a \
             halo of zeros around each image, which convolutions read beyond its edges, and {lanes} elements between two \
             blocks, so that their distance is not a power of two."
        );
        out.push('\n');
        out.push_str(&lines("   ".to_owned(), "   ", &text));
    }
    out.push_str(" */\n");
    out
}

fn parts(program: &KernelProgram, request: &Request, parallel: bool) -> Vec<(String, String)> {
    let p = &request.options.prefix;
    let steps = program.steps.len();
    let tiles = match program.tiles() {
        1 => String::new(),
        times => format!(", for one of {times} tiles of the batch after the other"),
    };
    let driver = format!(
        "pointers to all tensors, then {}, in the order of the model{tiles}. Start reading here: the comment above a step is its \
         path in the model.",
        if steps == 1 { "the only step".to_owned() } else { format!("the {steps} steps") }
    );
    let mut parts = Vec::new();
    if parallel {
        let text =
            format!("one call: runs {p}_run_thread on all threads of the pool, or on the calling thread.");
        parts.push((format!("{p}_run"), text));
        parts.push((format!("{p}_run_thread"), driver));
    } else {
        parts.push((format!("{p}_run"), driver));
    }
    if !program.prepacking.is_empty() {
        let text = "called once: computes what depends on parameters alone, and packs weights in the order in which the \
                    kernels read them.";
        parts.push((format!("{p}_pack"), text.to_owned()));
    }
    if let Some(mesh) = &request.mesh {
        let text = format!(
            "not in this file: what exchanges tensors between the {} ranks of the mesh.",
            mesh.ranks()
        );
        parts.push(("mithril_mesh".to_owned(), text));
    }
    let text =
        "the loops of single steps. Equal steps share a function, which is named after the first of them.";
    parts.push((format!("{p}_..."), text.to_owned()));
    let text = if has_kernels(program) {
        "kernels (products and convolutions, each for the sizes in its name) and helpers."
    } else {
        "helpers."
    };
    parts.push(("mithril_...".to_owned(), text.to_owned()));
    parts
}

fn has_kernels(program: &KernelProgram) -> bool {
    let is_kernel = |step: &KernelStep| matches!(step.work, KernelWork::Kernel(_) | KernelWork::Parts(_));
    program.steps.iter().any(is_kernel)
}

/// The comment of the function of a step; `body` is its text, with marks for the names of tensors.
pub fn describe(program: &KernelProgram, step: &KernelStep, body: &str) -> String {
    let origin = comment(&step.origin);
    let place = if origin.is_empty() || origin == step.name { String::new() } else { format!(" ({origin})") };
    let what = match &step.work {
        KernelWork::Nest(nest) => of_nest(program, step, nest, body),
        KernelWork::Rows(rows) => {
            let sizes: Vec<i64> = rows.vars.iter().map(|v| v.size).collect();
            let names: Vec<String> =
                rows.nests.iter().map(|(nest, _)| comment(&program.buffers[nest.to].name)).collect();
            let names = names.join(", ");
            if rows.nests.iter().all(|(nest, _)| nest.vars == rows.vars) {
                format!(": {names} of {sizes:?}, element by element in one pass")
            } else {
                format!(": {names}, for one row of {sizes:?} after the other")
            }
        }
        _ => String::new(),
    };
    let text = format!("/* {}{place}{what}. */", comment(&step.name));
    lines(String::new(), "   ", &text)
}

fn of_nest(program: &KernelProgram, step: &KernelStep, nest: &Nest, body: &str) -> String {
    let to = &program.buffers[nest.to];
    let mut terms = 0;
    nest.value.walk(&mut |e| {
        if let Expr::Reduce { vars, .. } = e {
            terms += vars.iter().map(|v| v.size).product::<i64>();
        }
    });
    let each = if terms == 0 {
        "element by element".to_owned()
    } else {
        format!("each element a reduction of {terms} terms")
    };
    let stores = body.matches(&format!("{MARK}{}{MARK_END}[", nest.to)).count();
    let note = if fast_path::is_written_twice(step, nest) {
        "; first with fast functions, and once more if an argument is out of their range"
    } else if stores > 1 {
        "; edges have separate loops"
    } else {
        ""
    };
    format!(": {}{:?}, {each}{note}", comment(&to.name), to.shape)
}

/// A name and what it is, in lines.
fn entry(name: &str, text: &str) -> String {
    let indent = " ".repeat(6 + COLUMN);
    if name.len() > COLUMN {
        return format!("     {name}\n{}", lines(indent.clone(), &indent, text));
    }
    lines(format!("     {name:<COLUMN$} "), &indent, text)
}

/// A text in lines, of which the first starts with `line` and the others with `indent`.
fn lines(mut line: String, indent: &str, text: &str) -> String {
    let mut out = String::new();
    for (i, word) in text.split(' ').enumerate() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            out.push_str(line.trim_end());
            out.push('\n');
            indent.clone_into(&mut line);
        } else if i > 0 {
            line.push(' ');
        }
        line.push_str(word);
    }
    out + &line + "\n"
}
