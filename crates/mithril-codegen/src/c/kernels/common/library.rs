//! The kernels of one C file: every function once, helpers before their users.

use rustc_hash::FxHashMap;

use crate::c::kernels::common::tuning::{TuningTask, TuningTasks};
use crate::c::request::Choices;
use crate::c::syntax::simplify::simplify;
use crate::c::target::{Element, Factor, Target};

/// So few rows do not fill the processor's pipelines with one sum each.
const FEW_ROWS: usize = 2;

/// Bytes of weights that stay in the second-level cache.
pub(crate) const NEAR: usize = 1 << 20;

/// How a micro-kernel meets the panels of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PanelUse {
    /// All of them are in the second-level cache: asking for them ahead only costs time.
    Cached,
    /// Each once, one after the other. Processors see that by themselves and need help at both ends: with one or two
    /// rows, where reading is all that a step does, and with six and more, where a step has so much else to do that
    /// reading falls behind (on Zen 5). With three to five, asking takes longer than not to ask (on Zen 4).
    Once,
    /// Each for several groups of rows, during which the next can be asked for.
    Shared,
}

impl PanelUse {
    /// Those of weights of so many bytes, for so many groups of rows.
    pub fn of(bytes: usize, groups: usize) -> Self {
        match groups {
            _ if bytes <= NEAR => Self::Cached,
            0 | 1 => Self::Once,
            _ => Self::Shared,
        }
    }

    /// The end of the name of a kernel for them.
    pub(crate) fn mark(self) -> &'static str {
        match self {
            Self::Cached => "_cached",
            Self::Once => "_once",
            Self::Shared => "",
        }
    }

    /// What a step asks for.
    pub(crate) fn fetch(self, few_rows: bool) -> &'static str {
        match (self, few_rows) {
            (Self::Cached, _) => "(void)next;",
            (Self::Once, true) => "MITHRIL_PREFETCH_L2((const char *)panel + 3072);\n(void)next;",
            (Self::Once, false) => {
                "if (rows > 5) {\n    MITHRIL_PREFETCH_L2((const char *)panel + 8192);\n    \
                 MITHRIL_PREFETCH_L2((const char *)(panel + LANES) + 8192);\n}\n(void)next;"
            }
            // Few groups meet a panel then: a step may have to ask for all of what comes.
            (Self::Shared, true) => "MITHRIL_PREFETCH_L2(next);\nMITHRIL_PREFETCH_L2(next + stride / 2);",
            (Self::Shared, false) => "MITHRIL_PREFETCH_L2(next);",
        }
    }
}

/// What stands for the name in a function's text until the library has found one.
const NAME: &str = "@name@";

/// Collects the functions of one C file.
#[derive(Debug, Clone)]
pub struct Library {
    target: Target,
    functions: Vec<String>,
    /// Requested name and text with its name left open, of each function.
    keys: Vec<(String, String)>,
    /// Text with its name left open, to the name it got.
    known: FxHashMap<String, String>,
    names: FxHashMap<String, usize>,
    tuning: TuningTasks,
}

/// The size of a [`Library`] at some time, to return to it.
#[derive(Debug, Clone, Copy)]
pub struct LibraryMark {
    functions: usize,
    tuning_tasks: usize,
    recent: usize,
}

impl Library {
    /// An empty library for this target.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            functions: Vec::new(),
            keys: Vec::new(),
            known: FxHashMap::default(),
            names: FxHashMap::default(),
            tuning: TuningTasks::default(),
        }
    }

    /// The library with choices for kernels that have candidates.
    #[must_use]
    pub fn with_choices(mut self, choices: Choices) -> Self {
        self.tuning.choices = choices;
        self
    }

    /// The position of the candidate that a kernel takes.
    pub(crate) fn chosen(&self, task: &TuningTask) -> usize {
        task.chosen(&self.tuning.choices)
    }

    /// Adds the tuning task of a kernel with several candidates.
    pub(crate) fn add_tuning_task(&mut self, task: TuningTask) {
        self.tuning.add(task);
    }

    /// The tuning tasks of all kernels.
    pub(crate) fn tuning_tasks(&self) -> &[TuningTask] {
        &self.tuning.tasks
    }

    /// Specifications of the tuning tasks since the last call.
    pub(crate) fn take_tuning_keys(&mut self) -> Vec<String> {
        std::mem::take(&mut self.tuning.recent)
    }

    /// What it is made for.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The vectors' definitions and all functions, in an order in which each comes after what it calls.
    pub fn source(&self) -> String {
        let mut text = include_str!("vector.c").replace("@lanes@", &self.target.lanes.to_string());
        let words =
            self.functions.iter().flat_map(|f| f.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
        let is_of_bf16 = |word: &str| word.ends_with("_BF16") || word == "mithril_round_bf16_vector";
        let (is_any, has_bf16) = words.fold((false, false), |(is_any, has_bf16), word| {
            (is_any || is_vector_function(word), has_bf16 || is_of_bf16(word))
        });
        if is_any {
            text.push_str(VECTOR_FUNCTIONS);
        }
        if has_bf16 {
            text.push_str(BF16_VECTORS);
        }
        for function in &self.functions {
            text.push('\n');
            text.push_str(function);
        }
        text
    }

    /// Adds a function unless its like is there, and says its name: `wish`, numbered where another has that name.
    pub(crate) fn add(&mut self, wish: &str, text: &str) -> String {
        if let Some(name) = self.known.get(text) {
            return name.clone();
        }
        let count = self.names.entry(wish.to_owned()).or_insert(0);
        *count += 1;
        let name = if *count == 1 { wish.to_owned() } else { format!("{wish}_{count}") };
        let function = simplify(&text.replace(NAME, &name));
        // A word that stands for nothing leaves its indentation.
        self.functions.push(function.split('\n').map(str::trim_end).collect::<Vec<_>>().join("\n"));
        self.keys.push((wish.to_owned(), text.to_owned()));
        self.known.insert(text.to_owned(), name.clone());
        name
    }

    /// Marks the functions so far, for [`Self::rollback`].
    pub(crate) fn mark(&self) -> LibraryMark {
        let (tuning_tasks, recent) = (self.tuning.tasks.len(), self.tuning.recent.len());
        LibraryMark { functions: self.functions.len(), tuning_tasks, recent }
    }

    /// Removes what was added after a mark.
    pub(crate) fn rollback(&mut self, mark: LibraryMark) {
        self.functions.truncate(mark.functions);
        for (wish, text) in self.keys.drain(mark.functions..) {
            self.known.remove(&text);
            *self.names.entry(wish).or_default() -= 1;
        }
        self.tuning.tasks.truncate(mark.tuning_tasks);
        self.tuning.recent.truncate(mark.recent);
    }

    /// The micro-kernel for this many rows, and such panels of what they are multiplied with, of whose two vectors of columns
    /// so many are wanted.
    pub(crate) fn micro(&mut self, factor: Factor, rows: usize, panels: PanelUse, vectors: usize) -> String {
        let element = factor.sums();
        let lanes = self.target.lanes_of(element);
        if factor == Factor::Pairs {
            self.add_pairs();
        }
        let is_few = rows <= FEW_ROWS;
        let is_half = vectors == 1;
        let half = if is_half { "_half" } else { "" };
        let fill = |template: &str| {
            substitute(
                template,
                &[
                    ("type", element.c()),
                    ("factor", factor.c()),
                    ("p", factor.suffix()),
                    ("t", element.suffix()),
                    ("lanes", &lanes.to_string()),
                    ("fetch", panels.fetch(is_few)),
                    ("panels", panels.mark()),
                    ("rows", &rows.to_string()),
                    ("vectors", &vectors.to_string()),
                    ("vectors_of", if is_half { " and the first vector of columns" } else { "" }),
                    ("half", half),
                    ("chains", &(4 / rows.max(1)).clamp(1, lanes).to_string()),
                    ("most_rows", &self.target.rows().to_string()),
                ],
            )
        };
        let (all, body) = (fill(include_str!("micro.c")), fill(include_str!("micro_rows.c")));
        let name = format!("mithril_micro_{}{}", factor.suffix(), panels.mark());
        if is_few {
            return self.add(&format!("{name}_{rows}"), &fill(include_str!("micro_few.c")));
        }
        self.add(&name, &all);
        self.add(&format!("{name}{half}_{rows}"), &body)
    }

    /// What multiplies words of four bytes.
    pub(crate) fn add_dot(&mut self) {
        self.add("mithril_words", include_str!("words.c"));
        self.add("mithril_dot", include_str!("../quantized/dot.c"));
    }

    /// What multiplies pairs of bfloat16.
    pub(crate) fn add_pairs(&mut self) {
        self.add("mithril_words", include_str!("words.c"));
        self.add("mithril_pairs", include_str!("pairs.c"));
    }

    /// The transposition of a square of vectors.
    pub(crate) fn transpose(&mut self, element: Element) -> String {
        let lanes = self.target.lanes_of(element);
        let interleaved = |first: usize| {
            let pairs: Vec<String> =
                (first..first + lanes / 2).map(|i| format!("{i}, {}", lanes + i)).collect();
            pairs.join(", ")
        };
        let names = ["even", "odd"];
        let rounds = lanes.ilog2() as usize;
        let round = |round: usize| {
            let (from, to) = (names[round % 2], names[(round + 1) % 2]);
            format!(
                "MITHRIL_UNROLL({lanes})\nfor (long i = 0; i < LANES / 2; i++) {{\n    \
                 {to}[2 * i] = MITHRIL_SHUFFLE({from}[i], {from}[i + LANES / 2], {});\n    \
                 {to}[2 * i + 1] = MITHRIL_SHUFFLE({from}[i], {from}[i + LANES / 2], {});\n}}\n",
                interleaved(0),
                interleaved(lanes / 2)
            )
        };
        let text = substitute(
            include_str!("transpose.c"),
            &[
                ("rounds", (0..rounds).map(round).collect::<String>().trim_end()),
                ("last", names[rounds % 2]),
                ("type", element.c()),
                ("t", element.suffix()),
                ("lanes", &lanes.to_string()),
            ],
        );
        self.add(&format!("mithril_transpose_{}", element.suffix()), &text)
    }
}

/// What stands before a loop of at most `iterations` iterations: all side by side, or a loop as it is.
pub(crate) fn unroll(iterations: usize, side_by_side: bool) -> String {
    if side_by_side { format!("MITHRIL_UNROLL({iterations})") } else { "MITHRIL_UNROLL_BY(1)".to_owned() }
}

/// Replaces `@key@` by its value, for each pair; further lines of a value are indented as its place is.
pub(crate) fn substitute(template: &str, pairs: &[(&str, &str)]) -> String {
    let mut text = template.to_owned();
    for (key, value) in pairs {
        let key = format!("@{key}@");
        while let Some(place) = text.find(&key) {
            let line = &text[text[..place].rfind('\n').map_or(0, |end| end + 1)..place];
            let indent = " ".repeat(line.len() - line.trim_start().len());
            let value = value.replace('\n', &format!("\n{indent}"));
            text.replace_range(place..place + key.len(), &value);
        }
    }
    text
}

/// The functions that there are for vectors of float: those whose names end in `_vector`.
pub(crate) const VECTOR_FUNCTIONS: &str = include_str!("vector_functions.c");

/// What reads and writes vectors of bfloat16.
const BF16_VECTORS: &str = include_str!("bf16_vectors.c");

/// Whether there is a function of that name for vectors of float.
pub fn is_vector_function(name: &str) -> bool {
    let is_in = |text: &str| text.contains(&format!(" {name}("));
    name.ends_with("_vector") && (is_in(VECTOR_FUNCTIONS) || is_in(BF16_VECTORS))
}
