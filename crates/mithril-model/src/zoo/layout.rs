//! How published checkpoints name and lay out what a model has, as data.

/// The names of one family of published checkpoints of a model.
///
/// Parameters and statistics of a model carry the names of its best-known checkpoint already; a layout says what
/// differs. In patterns `*` stands for one or more characters.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Who publishes it: `torchvision`, `transformers`, `openai`, `llama.cpp`.
    pub source: &'static str,
    /// What may stand before all names of a file (`transformer.`), and is taken off.
    pub prefixes: &'static [&'static str],
    /// Names in files that hold nothing a model needs: constants, counters, copies.
    pub ignored: &'static [&'static str],
    /// What is called or laid out otherwise; the first rule that fits holds. A name without a rule stays.
    pub rules: &'static [Rule],
}

/// One difference between a model and its checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Pattern of our names.
    pub ours: &'static str,
    /// Their names, in which each `*` is what the same `*` of `ours` stands for. Several are joined along axis 0.
    pub theirs: &'static [&'static str],
    /// Whether their matrices are `[in, out]` where ours are `[out, in]`.
    pub transposed: bool,
    /// Whether the rows of each head are pairs that the rotary embedding turns, where ours are the first halves of all
    /// pairs, then the second. Which heads there are, the file has to say; see [`Step::paired`](super::plan::Step).
    pub paired: bool,
}

impl Layout {
    /// A layout without differences.
    pub const fn of(source: &'static str) -> Self {
        Self { source, prefixes: &[], ignored: &[], rules: &[] }
    }
}

/// The same array under another name.
pub const fn renamed(ours: &'static str, theirs: &'static [&'static str]) -> Rule {
    Rule { ours, theirs, transposed: false, paired: false }
}

/// A matrix the other way round.
pub const fn transposed(ours: &'static str, theirs: &'static [&'static str]) -> Rule {
    Rule { ours, theirs, transposed: true, paired: false }
}

/// An array whose rows are pairs of a rotary embedding.
pub const fn paired(ours: &'static str, theirs: &'static [&'static str]) -> Rule {
    Rule { ours, theirs, transposed: false, paired: true }
}
