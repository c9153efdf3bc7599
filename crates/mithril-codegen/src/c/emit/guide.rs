//! Comments of a generated file: the one that leads through it, with where to begin and the words that it uses (only what
//! the file has is explained), and those of the functions of single steps.

use std::collections::BTreeSet;

use crate::c::emit::fast_path;
use crate::c::ir::expr::Expr;
use crate::c::ir::program::{KernelProgram, KernelStep, KernelWork, Nest};
use crate::c::options::Options;
use crate::c::syntax::comment::comment;
use crate::c::syntax::expr::{MARK, MARK_END};
use crate::c::syntax::wrap::WIDTH;

/// Where the explanations of a list begin.
const COLUMN: usize = 18;

/// The comment for the rest of the file, `code`; `parallel`: whether threads divide the steps.
pub fn guide(program: &KernelProgram, options: &Options, parallel: bool, code: &str) -> String {
    let mut out = String::from("/* The way through this file, from its end:\n");
    for (name, text) in way(program, &options.prefix, parallel) {
        out.push_str(&entry(&name, &text));
    }
    out.push_str("\n   Words:\n");
    let used: BTreeSet<&str> = code.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    for (names, text) in words(program, options) {
        let found: Vec<&str> = names.iter().copied().filter(|name| used.contains(name)).collect();
        if !found.is_empty() {
            out.push_str(&entry(&found.join(", "), &text));
        }
    }
    out.push_str(" */\n");
    out
}

fn way(program: &KernelProgram, p: &str, parallel: bool) -> Vec<(String, String)> {
    let steps = program.steps.len();
    let parts = match program.times() {
        1 => String::new(),
        times => format!(", for one of the {times} parts of the data after another"),
    };
    let begin = format!(
        "where every tensor lies, then {}, in the order of the model{parts}. Begin here: above a step stands its place in the \
         model.",
        if steps == 1 { "the one step".to_owned() } else { format!("the {steps} steps") }
    );
    let mut way = Vec::new();
    if parallel {
        way.push((
            format!("{p}_run"),
            format!("one call: has {p}_part run by all threads, or by the caller alone."),
        ));
        way.push((format!("{p}_part"), begin));
    } else {
        way.push((format!("{p}_run"), begin));
    }
    if !program.prepared.is_empty() {
        let text = "once, before the first call: computes what depends on parameters alone, and brings weights into the \
                    order in which they are read.";
        way.push((format!("{p}_pack"), text.to_owned()));
    }
    let text = "above these, the loops of single steps. Equal steps share a function; its names are those of the first step.";
    way.push((format!("{p}_..."), text.to_owned()));
    let text = if has_kernels(program) {
        "above these, kernels (sums of products, each made for one size, which is in its name), and helpers."
    } else {
        "above these, helpers."
    };
    way.push(("mithril_...".to_owned(), text.to_owned()));
    way
}

/// What the words mean that are no everyday ones of C.
fn words(program: &KernelProgram, options: &Options) -> Vec<(&'static [&'static str], String)> {
    let (p, lanes) = (&options.prefix, options.target.lanes);
    let vector = if lanes > 1 {
        format!(
            "a vector has LANES elements, {lanes} floats. On a processor whose vectors are narrower the compiler takes several \
             for one."
        )
    } else {
        "plain C: a vector is one element (LANES is 1).".to_owned()
    };
    let block = format!(
        "{lanes} channels. A tensor in blocks lies as [images][channels / {lanes}][rows][pixels][{lanes}] (of volumes as \
         [images][frames][channels / {lanes}][rows][pixels][{lanes}]), with margins of zeros \
         around each image, which convolutions read beyond its edges, and a vector between blocks, lest they lie powers of two \
         apart. Numbers in positions are the strides of these axes, and where the first pixel behind the margins lies."
    );
    let mut words: Vec<(&[&str], String)> = vec![
        (
            &["thread", "threads"],
            "the number of a thread, and of how many: a function that takes both does one thread's part. Where somebody reads \
             what others wrote, all wait for each other first."
                .to_owned(),
        ),
        (
            &["arena"],
            "scratch memory of a call. Tensors that are not needed at the same time lie in the same place; what is added to it \
             is bytes."
                .to_owned(),
        ),
        (&["own"], "the scratch memory of one thread, behind the arena of all.".to_owned()),
        (&["LANES"], vector),
        (&["panel"], "the part of a matrix or of the weights that is WIDTH wide, mostly two vectors.".to_owned()),
        (
            &["micro", "tile"],
            "innermost functions: as many sums as fit into the registers grow together.".to_owned(),
        ),
        (
            &["LONGER"],
            "where work does not divide evenly, this many of the first groups have one more.".to_owned(),
        ),
        (
            &["next", "stride", "ahead"],
            "the weights that are needed next, which are asked for while these are used; ahead are those with which the next \
             step starts."
                .to_owned(),
        ),
        (
            &["finish", "tail"],
            "what becomes of a finished sum before it is stored: biases are added, for example. operand0, operand1 are the \
             tensors read for it."
                .to_owned(),
        ),
    ];
    if program.buffers.iter().any(|b| b.blocks.is_some()) {
        words.push((&["block", "blocks", "blocked"], block));
    }
    if !program.prepared.is_empty() {
        words.push((&["packed"], format!("what {p}_pack made: {HOW}")));
    }
    words
}

/// What packing makes.
const HOW: &str = "weights in the order in which a kernel reads them (..._packed), and what follows from parameters. Where a batch \
                   norm or the like stands behind a product, its factors are multiplied into the weights (..._scaled), and what \
                   it adds is one tensor (..._shift).";

fn has_kernels(program: &KernelProgram) -> bool {
    let is_kernel = |step: &KernelStep| matches!(step.work, KernelWork::Kernel(_) | KernelWork::Parts(_));
    program.steps.iter().any(is_kernel)
}

/// What the function of a step computes; `body` is its text, with marks for the names of tensors.
pub fn describe(program: &KernelProgram, step: &KernelStep, body: &str) -> String {
    let origin = comment(&step.origin);
    let place = if origin.is_empty() || origin == step.name { String::new() } else { format!(" ({origin})") };
    let what = match &step.work {
        KernelWork::Nest(nest) => of_nest(program, step, nest, body),
        KernelWork::Rows(rows) => {
            let sizes: Vec<i64> = rows.vars.iter().map(|v| v.size).collect();
            let made: Vec<String> =
                rows.nests.iter().map(|(nest, _)| comment(&program.buffers[nest.to].name)).collect();
            let made = made.join(", ");
            if rows.nests.iter().all(|(nest, _)| nest.vars == rows.vars) {
                format!(": {made} of {sizes:?}, element by element in one pass")
            } else {
                format!(": one row of {sizes:?} after another, of which each is read once; makes {made}")
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
    let each =
        if terms == 0 { "element by element".to_owned() } else { format!("each element of {terms} terms") };
    let stores = body.matches(&format!("{MARK}{}{MARK_END}[", nest.to)).count();
    let parts = if fast_path::is_written_twice(step, nest) {
        "; first by loops that are quick, and once more if a number is beyond what these can do"
    } else if stores > 1 {
        "; with loops of their own for parts (edges, for example) in which other tests pass"
    } else {
        ""
    };
    format!(": {}{:?}, {each}{parts}", comment(&to.name), to.shape)
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
