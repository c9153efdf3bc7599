//! A generated file as several translation units, which a compiler takes side by side.
//!
//! Optimizers work on one function at a time, and take as long for a file as for its functions one after the other. So
//! the functions that are compiled for themselves in the one file too (those marked as never inlined, and the interface)
//! are dealt out to the units, visible to the library alone; a unit declares those of the others. What is inlined
//! (helpers, small functions, constants, macros) is repeated in each unit that needs it: the machine code of a function
//! stays the same.

use rustc_hash::{FxHashMap, FxHashSet};

/// What a top-level part of a file is for the units.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// In every unit: directives, macros, types, declarations.
    Common,
    /// In every unit that needs one of its names: constants, functions that may be inlined.
    Helper,
    /// In one unit: a function that is never inlined, or is of the interface. The length of its head, up to the body.
    Function(usize),
    /// Memory of the whole file, which several units cannot each have.
    State,
}

/// A top-level part of a file.
struct Item<'a> {
    text: &'a str,
    kind: Kind,
    /// The names that it defines.
    names: Vec<&'a str>,
}

/// What keeps a function from being inlined.
const NEVER_INLINED: [&str; 2] = ["MITHRIL_NOINLINE", "MITHRIL_SHORT_LOOPS"];

/// How much text takes the compiler as long as a loop, about.
const LOOP: usize = 400;

/// The same file in at most so many units, the longest to compile first; the file itself where it cannot be divided.
///
/// ```
/// let file = "#include <math.h>\n#define MITHRIL_NOINLINE\nstatic MITHRIL_NOINLINE float f(float x) {\n    return sqrtf(x);\n}\n\
///             float g(float x) {\n    return f(x) + 1;\n}\n";
/// let units = mithril_codegen::c::units(file, 2);
/// assert_eq!(units.len(), 2);
/// assert!(units.iter().all(|unit| unit.contains("float f(float x)") && unit.contains("#include <math.h>")));
/// ```
pub fn units(file: &str, count: usize) -> Vec<String> {
    let whole = || vec![file.to_owned()];
    let Some(items) = items(file) else { return whole() };
    if count < 2 || items.iter().any(|item| item.kind == Kind::State) {
        return whole();
    }
    let uses = Uses::new(&items);
    let mut functions: Vec<(usize, usize)> = items
        .iter()
        .enumerate()
        .filter(|(_, item)| matches!(item.kind, Kind::Function(_)))
        .map(|(i, item)| (weight(item), i))
        .collect();
    functions.sort_by_key(|&(weight, i)| (std::cmp::Reverse(weight), i));
    let mut units: Vec<Unit> = (0..count.min(functions.len())).map(|_| Unit::default()).collect();
    for (_, function) in functions {
        let reached = uses.reached(function);
        let grown = |unit: &Unit| {
            let new = reached.iter().filter(|i| !unit.items.contains(i) && items[**i].kind == Kind::Helper);
            unit.weight + weight(&items[function]) + new.map(|&i| weight(&items[i])).sum::<usize>()
        };
        let Some((weight, unit)) = units.iter_mut().map(|u| (grown(u), u)).min_by_key(|(w, _)| *w) else {
            return whole();
        };
        unit.weight = weight;
        unit.own.insert(function);
        unit.items.extend(reached);
    }
    units.sort_by_key(|unit| std::cmp::Reverse(unit.weight));
    if units.len() < 2 { whole() } else { units.iter().map(|unit| unit.text(&items)).collect() }
}

/// How long a part takes to compile, in characters of straight code.
fn weight(item: &Item<'_>) -> usize {
    item.text.len() + LOOP * item.text.matches("for (").count()
}

#[derive(Default)]
struct Unit {
    weight: usize,
    /// The functions that are compiled here.
    own: FxHashSet<usize>,
    /// Everything that these need, themselves included.
    items: FxHashSet<usize>,
}

impl Unit {
    fn text(&self, items: &[Item<'_>]) -> String {
        let mut out = String::new();
        for (i, item) in items.iter().enumerate() {
            match item.kind {
                Kind::Function(head) if self.own.contains(&i) => {
                    out.push_str(&visible(&item.text[..head]));
                    out.push_str(&item.text[head..]);
                }
                Kind::Function(head) if self.items.contains(&i) => {
                    out.push_str(visible(&item.text[..head]).trim_end());
                    out.push(';');
                }
                Kind::Common => out.push_str(item.text),
                Kind::Helper if self.items.contains(&i) => out.push_str(item.text),
                _ => continue,
            }
            out.push('\n');
        }
        out
    }
}

/// The head of a function that other units of the library call.
fn visible(head: &str) -> String {
    match head.strip_prefix("static ") {
        Some(rest) => format!("__attribute__((visibility(\"hidden\"))) {rest}"),
        None => head.to_owned(),
    }
}

/// Which parts name which others.
struct Uses<'a> {
    items: &'a [Item<'a>],
    direct: Vec<Vec<usize>>,
}

impl<'a> Uses<'a> {
    fn new(items: &'a [Item<'a>]) -> Self {
        let mut defined: FxHashMap<&str, Vec<usize>> = FxHashMap::default();
        for (i, item) in items.iter().enumerate() {
            for name in &item.names {
                defined.entry(name).or_default().push(i);
            }
        }
        let direct = items.iter().map(|item| {
            let numbers: FxHashSet<usize> =
                words(item.text).filter_map(|w| defined.get(w)).flatten().copied().collect();
            numbers.into_iter().collect()
        });
        Self { items, direct: direct.collect() }
    }
    /// All parts that a unit with a function has to have or to declare, the function included.
    fn reached(&self, function: usize) -> FxHashSet<usize> {
        let (mut reached, mut next) = (FxHashSet::default(), vec![function]);
        reached.insert(function);
        while let Some(item) = next.pop() {
            for &other in &self.direct[item] {
                // Another function is only declared: what its body needs is its own unit's.
                if reached.insert(other) && !matches!(self.items[other].kind, Kind::Function(_)) {
                    next.push(other);
                }
            }
        }
        reached
    }
}

/// The words of a text: names, keywords and numbers.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The top-level parts of a file, without comments between them; `None`: it is not as the emitter writes it.
fn items(file: &str) -> Option<Vec<Item<'_>>> {
    let (mut items, mut rest) = (Vec::new(), file);
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Some(items);
        }
        let length = if rest.starts_with("/*") {
            rest = &rest[rest.find("*/")? + 2..];
            continue;
        } else if rest.starts_with('#') {
            directive(rest)?
        } else {
            declaration(rest)?
        };
        let (text, after) = rest.split_at(length);
        rest = after;
        items.push(if text.starts_with('#') { directive_item(text)? } else { item(text) });
    }
}

/// The length of a directive; of one that begins a condition, up to its end.
fn directive(text: &str) -> Option<usize> {
    let (mut depth, mut length, mut goes_on) = (0_usize, 0, false);
    for line in text.split_inclusive('\n') {
        length += line.len();
        if !goes_on && line.starts_with("#if") {
            depth += 1;
        } else if !goes_on && line.starts_with("#endif") {
            depth = depth.checked_sub(1)?;
        }
        goes_on = line.trim_end().ends_with('\\');
        if depth == 0 && !goes_on {
            return Some(length);
        }
    }
    None
}

fn directive_item(text: &str) -> Option<Item<'_>> {
    if !text.starts_with("#if") {
        let names: Vec<&str> =
            text.strip_prefix("#define ").and_then(|rest| words(rest).next()).into_iter().collect();
        return Some(Item { text, kind: Kind::Common, names });
    }
    // What is between the directives of the condition.
    let conditions = ["#if", "#el", "#endif"];
    let (mut inner, mut start, mut at) = (Vec::new(), 0, 0);
    for line in text.split_inclusive('\n') {
        if conditions.iter().any(|word| line.starts_with(word)) {
            inner.extend(items(&text[start..at])?);
            start = at + line.len();
        }
        at += line.len();
    }
    let is_own =
        |item: &Item<'_>| matches!(item.kind, Kind::Function(_)) && !item.text.starts_with("static ");
    let is_common = |item: &Item<'_>| item.kind == Kind::Common;
    let kind = if inner.iter().any(is_own) {
        return None;
    } else if inner.iter().any(|item| item.kind == Kind::State) {
        Kind::State
    } else if inner.iter().all(is_common) {
        Kind::Common
    } else {
        // Functions that are never inlined are repeated too where they stand in a condition.
        Kind::Helper
    };
    let types = inner.iter().filter(|item| is_common(item) && item.names.is_empty());
    let types: Vec<&str> =
        types.flat_map(|item| words(item.text)).filter(|word| word.starts_with("mithril_")).collect();
    let names = inner.iter().flat_map(|item| &item.names).copied().chain(types).collect();
    Some(Item { text, kind, names })
}

/// The length of a declaration or definition.
fn declaration(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut depth, mut at, mut is_function) = (0_usize, 0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'*') => at += text[at..].find("*/")? + 1,
            quote @ (b'"' | b'\'') => {
                at += 1;
                while *bytes.get(at)? != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            b'{' | b'(' | b'[' => {
                if depth == 0 && bytes[at] == b'{' {
                    is_function = function_name(&text[..at]).is_some();
                }
                depth += 1;
            }
            close @ (b'}' | b')' | b']') => {
                depth = depth.checked_sub(1)?;
                if depth == 0 && close == b'}' && is_function {
                    return Some(at + 1);
                }
            }
            b';' if depth == 0 => return Some(at + 1),
            _ => {}
        }
        at += 1;
    }
    None
}

/// The name of the function with this head; `None`: it is the head of something else.
fn function_name(head: &str) -> Option<&str> {
    const OTHERS: [&str; 4] = ["typedef", "struct", "union", "enum"];
    if head.contains('=') || OTHERS.iter().any(|word| head.starts_with(word)) {
        return None;
    }
    let mut rest = head;
    loop {
        let open = rest.find('(')?;
        let name = words(&rest[..open]).last()?;
        if name != "__attribute__" {
            return Some(name);
        }
        rest = &rest[open + closing(&rest[open..])?..];
    }
}

/// Where the bracket closes that a text begins with.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(i + 1);
        }
    }
    None
}

fn item(text: &str) -> Item<'_> {
    let head = text.find('{').unwrap_or(text.len());
    let is_definition = text.ends_with('}');
    if let (true, Some(name)) = (is_definition, function_name(&text[..head])) {
        let is_own = !text.starts_with("static ") && !text.starts_with("MITHRIL_INLINE ");
        let stays = words(&text[..head]).any(|word| NEVER_INLINED.contains(&word));
        let kind = if is_own || stays { Kind::Function(head) } else { Kind::Helper };
        return Item { text, kind, names: vec![name] };
    }
    let Some((left, _)) = text.split_once('=') else {
        let is_variable = text.starts_with("static ") && !text.contains('(');
        return Item { text, kind: if is_variable { Kind::State } else { Kind::Common }, names: Vec::new() };
    };
    if left.contains('{') || text.starts_with("_Static_assert") {
        return Item { text, kind: Kind::Common, names: Vec::new() };
    }
    let name = words(left.split('[').next().unwrap_or(left)).last();
    let kind = if words(left).any(|word| word == "const") { Kind::Helper } else { Kind::State };
    Item { text, kind, names: name.into_iter().collect() }
}

#[cfg(test)]
mod tests {
    use super::units;

    const FILE: &str = "/* What it is. */\n#include <math.h>\n#ifndef ONCE\n#define MITHRIL_NOINLINE __attribute__((noinline))\n\
        #endif\n#define TWICE(x) twice(x)\ntypedef struct { int a; } pair;\nenum { N = 4 };\n\
        static const float TABLE[2] = {1, 2};\nstatic const float OTHER[2] = {'{', '}'};\n\
        static inline float twice(float x) {\n    return 2 * x; /* } */\n}\n\
        #ifndef NDEBUG\nstatic int invalid(int x)\n{\n    return x > 1 ? 3 : 0;\n}\n#endif\n\
        static MITHRIL_NOINLINE float first(float x)\n{\n    return TWICE(x) + TABLE[0];\n}\n\
        static MITHRIL_NOINLINE float second(float x)\n{\n    return first(x) + OTHER[1];\n}\n\
        float run(float x)\n{\n#ifndef NDEBUG\n    if (invalid(1)) return 0;\n#endif\n    return first(x) + second(x);\n}\n";

    #[test]
    fn each_function_is_in_one_unit_and_helpers_where_they_are_needed() {
        let units = units(FILE, 3);
        assert_eq!(units.len(), 3);
        let body = |name: &str| {
            let having: Vec<&String> =
                units.iter().filter(|unit| unit.contains(&format!("{name}(float x)\n{{"))).collect();
            assert_eq!(having.len(), 1, "{name}: {units:#?}");
            having[0].clone()
        };
        let (first, second, run) = (body("first"), body("second"), body("run"));
        assert!(first.contains("twice(float x) {") && first.contains("TABLE") && !first.contains("OTHER[2]"));
        assert!(second.contains("float first(float x);") && !second.contains("twice(float x) {"));
        assert!(second.contains("visibility(\"hidden\"))) MITHRIL_NOINLINE float second"));
        assert!(run.contains("static int invalid") && !first.contains("static int invalid"));
        assert!(units.iter().all(|unit| unit.contains("enum { N = 4 };") && unit.contains("} pair;")));
    }

    #[test]
    fn there_are_as_many_units_as_asked_for() {
        for count in 2..4 {
            assert_eq!(units(FILE, count).len(), count);
        }
        let text = "static const char *text(void)\n{\n    return \"({\\\"[\"; /* )}] */\n}\n";
        assert_eq!(units(&format!("{text}{FILE}"), 3).len(), 3, "brackets in texts and comments are none");
    }

    #[test]
    fn what_has_state_or_is_not_understood_stays_whole() {
        for line in ["static int count = 0;\n", "static _Atomic int count;\n", "int broken(\n"] {
            let file = format!("{line}{FILE}");
            assert_eq!(units(&file, 3), [file]);
        }
        assert_eq!(units(FILE, 1), [FILE]);
        assert_eq!(units("", 4), [""]);
    }
}
