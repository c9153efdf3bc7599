//! Damaged texts: the parser answers with a graph or an error, and what it reads it can print.

use mithril::ir::{DType, text, verify};
use mithril_testing::program::{Step, Style, build};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::sample::Index;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};

/// What is put into texts: pieces of the grammar at wrong places, and what is in no text.
const PIECES: &[&str] = &[
    "%",
    "%0",
    "%99999999999999999999",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    "\"",
    "\\",
    "\\u{110000}",
    "\\u{",
    "=",
    ":",
    "-",
    "--",
    "//",
    "//0",
    "//n",
    "*",
    "**",
    "+",
    "...",
    ".",
    "0",
    "-1",
    "1e999",
    "-",
    "9223372036854775807",
    "-9223372036854775808",
    "99999999999999999999",
    "NaN",
    "inf",
    "-inf",
    "none",
    "true",
    "f32",
    "bool[",
    "i64[2]{",
    "f32[n]{}",
    "n",
    "π",
    "\u{0}",
    "\u{feff}",
    "𝒏",
    "\n",
    "in",
    "return",
    "update",
    "param",
    "graph {",
    "concat",
    "reshape(",
    "\"\"",
    "'",
    "0.",
    ".5",
    "((((((((",
    "training",
    "0:n:-1",
    "::",
];

/// A change of a text: where, how much is cut out, and what is put there.
type Change = (Index, u8, Index, bool);

fn change(text: &str, (at, cut, piece, insert): &Change) -> String {
    let chars: Vec<char> = text.chars().collect();
    let start = at.index(chars.len() + 1);
    // Mostly small cuts, sometimes large ones.
    let cut = if *cut < 200 { usize::from(cut % 4) } else { usize::from(*cut) };
    let mut out: String = chars[..start].iter().collect();
    if *insert {
        out += PIECES[piece.index(PIECES.len())];
    }
    out.extend(chars.iter().skip(start + cut));
    out
}

fn runner(cases: u32) -> TestRunner {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        config.rng_seed = RngSeed::Fixed(1);
    }
    TestRunner::new(config)
}

/// What is read prints, reads back and prints the same.
fn survives(damaged: &str) -> Result<(), TestCaseError> {
    let fail = |message: String| Err(TestCaseError::fail(format!("{message}\n{damaged}")));
    match text::parse(damaged) {
        Ok(graph) => {
            // Any text may be a graph that is not well typed; saying so must not panic either.
            let _ = verify::verify(&graph, DType::F32);
            let printed = text::print(&graph);
            match text::parse(&printed) {
                Ok(again) if text::print(&again) == printed => Ok(()),
                Ok(again) => fail(format!("{printed}\nprinted again is\n{}", text::print(&again))),
                Err(error) => fail(format!("{printed}\nis not read back: {error}")),
            }
        }
        Err(error) if error.to_string().contains("line ") => Ok(()),
        Err(error) => fail(format!("no line: {error}")),
    }
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    vec(any::<Change>(), 1..4)
}

#[test]
fn damaged_graphs_are_graphs_or_errors() {
    let strategy = (vec(any::<Step>(), 0..6), changes());
    let result = runner(600).run(&strategy, |(steps, changes)| {
        let text = text::print(&build(&steps, Style::Any, DType::F32).graph);
        survives(&changes.iter().fold(text, |text, c| change(&text, c)))
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn damaged_literals_and_sizes_are_read_or_refused() {
    let texts = [
        "(1, (2, n), none)",
        "f32[2, 1]{1.0, -0.0}",
        "2*((n+1)//2)-3",
        "0:n:-1",
        "\"a\\n\\u{1f600}\"",
        "1e-5",
    ];
    let strategy = (any::<Index>(), changes());
    let result = runner(2000).run(&strategy, |(which, changes)| {
        let damaged =
            changes.iter().fold(texts[which.index(texts.len())].to_owned(), |text, c| change(&text, c));
        if let Ok(lit) = text::parse_literal(&damaged) {
            let printed = lit.to_string();
            let again = text::parse_literal(&printed).map(|lit| lit.to_string());
            if !again.as_ref().is_ok_and(|again| *again == printed) {
                return Err(TestCaseError::fail(format!("{damaged:?} is {printed:?}, which is {again:?}")));
            }
        }
        if let Ok(dim) = text::parse_dim(&damaged) {
            let printed = dim.to_string();
            let again = text::parse_dim(&printed).map(|dim| dim.to_string());
            if !again.as_ref().is_ok_and(|again| *again == printed) {
                return Err(TestCaseError::fail(format!("{damaged:?} is {printed:?}, which is {again:?}")));
            }
        }
        let _ = text::parse_type(&damaged);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn products_do_not_grow_without_end() {
    let factors: Vec<String> = (0..40).map(|i| format!("(a{i}+b{i})")).collect();
    assert!(text::parse_dim(&factors.join("*")).is_err());
    assert!(text::parse_dim(&factors[..5].join("*")).is_ok());
}

#[test]
fn words_of_literals_name_no_size() {
    for word in ["inf", "NaN", "none", "true", "false", "training", "f32", "bool"] {
        assert!(text::parse_dim(&format!("{word}+1")).is_err(), "{word}");
        assert!(text::parse_type(&format!("f32[{word}]")).is_err(), "{word}");
    }
    assert_eq!(text::parse_literal("infinite").map(|lit| lit.to_string()).ok().as_deref(), Some("infinite"));
}
