//! The text form of programs of loops: what prints parses, to the same program, and any other text is an error.

use std::cell::{Cell, RefCell};

use mithril::codegen::c::ir::program::LoopProgram;
use mithril::codegen::c::pipeline::loop_programs;
use mithril::compile::c::{C, COptions, CRequest};
use mithril::compile::passes::differentiate::Request;
use mithril::compile::pipeline::lower;
use mithril::ir::{DType, Graph, text};
use mithril_testing::program::Style;
use mithril_testing::random::{Check, for_programs, request, with_gradients};
use proptest::prelude::*;

const F32: DType = DType::F32;

/// The programs after each pass over loops print, and parse to the same.
fn round_trips(graph: &Graph, options: COptions) -> Result<Vec<String>, String> {
    let request = CRequest { options, ..CRequest::default() };
    let programs = loop_programs(graph, &request).map_err(|e| e.to_string())?;
    let mut texts = Vec::new();
    for (stage, program) in programs {
        let text = program.to_string();
        let parsed = LoopProgram::parse(&text, &program.elided_constants())
            .map_err(|e| format!("{stage} does not parse: {e}\n{text}"))?;
        let again = parsed.to_string();
        if again != text {
            return Err(format!("{stage} parses to something else:\n{text}\n{again}"));
        }
        // Also what the text does not show, such as the order of terms.
        if format!("{parsed:?}") != format!("{program:?}") {
            return Err(format!("{stage} parses to another program:\n{program:#?}\n{parsed:#?}"));
        }
        texts.push(text);
    }
    Ok(texts)
}

fn lowered(graph: &Graph) -> Result<Graph, String> {
    lower(graph, &C, F32, &mut |_, _| {}).map_err(|e| e.to_string())
}

#[test]
fn stages_of_random_programs_round_trip() {
    let (count, style) = (Cell::new(0), RefCell::new(Style::Any));
    let check = |graph: &Graph, pack: bool| -> Check {
        let graph = lowered(graph)?;
        // Sizes that are symbols are not for C.
        if graph.inputs.iter().any(|&v| graph.ty(v).is_some_and(|ty| ty.shape.known().is_none())) {
            return Ok(());
        }
        count.set(count.get() + round_trips(&graph, COptions { pack, ..COptions::default() })?.len());
        Ok(())
    };
    for next in [Style::Products, Style::Any] {
        style.replace(next);
        for_programs(40, (next, 4..20), F32, |program, choices| {
            let pack = choices.first().is_some_and(|c| c % 2 == 1);
            check(&program.graph, pack)?;
            let request = Request { recompute: pack, ..request(&program.graph) };
            with_gradients(program, &request, F32).map_or(Ok(()), |program| check(&program.graph, pack))
        });
    }
    assert!(count.get() > 500, "{} programs", count.get());
}

/// Graphs whose programs have blocks, tiles, integers, states, calls, checked positions, and large constants.
const GRAPHS: &[&str] = &[
    "data %0 \"x\": f32[1, 16, 9, 9]
     param %1 \"v\": f32[32, 16, 3, 3]
     param %2 \"w\": f32[32, 32, 3, 3]
     %3: f32[1, 32, 9, 9] = conv_general(%0, %1, (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1) in \"a.\\\"b\"
     %4: f32[1, 32, 9, 9] = relu(%3) in \"\"
     %5: f32[1, 32, 9, 9] = conv_general(%4, %2, (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1) in \"\"
     return \"y\" = %5",
    "data %0 \"x\": f64[5, 5]
     data %1 \"i\": i64[7]
     state %2 \"s\": f64[7, 5]
     %3: f64[5, 5] = cholesky(%0) in \"\"
     %4: f64[7, 5] = take(%3, %1, 0) in \"\"
     %5: f64[7, 5] = sort(%4, -1, false) in \"\"
     %6: f64[7, 5] = add(%5, %2) in \"\"
     %7: bool[7, 5] = less(%6, 0.5) in \"\"
     update %2 = %6
     return \"y\" = %7",
];

fn samples() -> Vec<String> {
    let mut texts = Vec::new();
    for lines in GRAPHS {
        let graph = text::parse(&format!("graph {{\n{lines}\n}}\n")).expect("a graph");
        let options = COptions { pack: true, in_place: true, ..COptions::default() };
        let graph = lowered(&graph).expect("lowering");
        texts.extend(round_trips(&graph, options).unwrap_or_else(|e| panic!("{e}")));
    }
    assert!(texts.iter().any(|text| text.contains("in blocks of 8, halo 1")), "{texts:#?}");
    assert!(texts.iter().any(|text| text.contains(" input 2, output 1 ")), "{texts:#?}");
    texts
}

#[test]
fn large_constants_are_given_beside_the_text() {
    let numbers = (0..200).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
    let graph = format!(
        "graph {{\n data %0 \"x\": i64[200]\n %1: i64[200] = add(%0, i64[200]{{{numbers}}}) in \"\"\n return \"y\" = %1\n}}\n"
    );
    let graph = lowered(&text::parse(&graph).expect("a graph")).expect("lowering");
    let texts = round_trips(&graph, COptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert!(texts[0].contains("i64[200]{...} constant"), "{}", texts[0]);
    let error = LoopProgram::parse(&texts[0], &[]).expect_err("no constant");
    assert!(error.to_string().contains("there is no such constant"), "{error}");
}

#[test]
fn deep_expressions_parse_and_deeper_ones_are_errors() {
    let program = |depth: usize| {
        let (open, close) = ("(".repeat(depth), " + x0[])".repeat(depth));
        format!(
            "x0: f32[] input 0 \"x\"\nx1: f32[] output 0 \"y\"\nvariables: 0\nx1[] = {open}x0[]{close} in \"\" as \"y\"\n"
        )
    };
    let text = program(200);
    assert_eq!(LoopProgram::parse(&text, &[]).expect("a program").to_string(), text);
    assert!(LoopProgram::parse(&program(100_000), &[]).is_err());
    assert!(LoopProgram::parse(&format!("{}x1[] = {}", program(1), "([".repeat(100_000)), &[]).is_err());
}

#[test]
fn errors_say_where() {
    let head = "x0: f32[4] input 0 \"x\"\nx1: f32[4] output 0 \"y\"\nvariables: 1\n";
    for (line, words) in [
        ("x1[i0 < 4] = x2[i0] in \"\" as \"\"", "there is no x2"),
        ("x1[i0 < 4] = x0[i1] in \"\" as \"\"", "no loop counts with i1"),
        ("x1[i0 < 4] = x0[((i0) / 0)] in \"\" as \"\"", "not positive"),
        ("x1[i0 < 4] = wild(x0[i0]) in \"\" as \"\"", "there is no function `wild`"),
        ("x1[i0 < 4] = (x0[i0] ^ x0[i0]) in \"\" as \"\"", "expected an operator"),
        ("x1[i0 < 4] = x0[i0]", "expected `in`"),
        ("", "expected"),
    ] {
        let text = if line.is_empty() { "graph {}".to_owned() } else { format!("{head}{line}\n") };
        let error = LoopProgram::parse(&text, &[]).expect_err(line).to_string();
        assert!(error.contains(words) && error.contains("line "), "{line}: {error}");
    }
}

/// A change of a text: what is taken out at a place, and what is put there.
fn changed(text: &str, changes: &[(usize, usize, String)]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for (at, count, new) in changes {
        let at = at % (chars.len() + 1);
        let end = (at + count).min(chars.len());
        chars.splice(at..end, new.chars());
    }
    chars.into_iter().collect()
}

#[test]
fn any_text_is_a_program_or_an_error() {
    let samples = samples();
    let tokens = "[-x0-9i<>=(){}\\[\\],.:+*/%`\" \nea]{0,12}";
    let change = (any::<usize>(), 0..12_usize, tokens);
    let strategy = (any::<usize>(), prop::collection::vec(change, 1..4), any::<Vec<u8>>());
    let mut runner =
        proptest::test_runner::TestRunner::new(ProptestConfig { cases: 3000, ..ProptestConfig::default() });
    let result = runner.run(&strategy, |(which, changes, bytes)| {
        let text = changed(&samples[which % samples.len()], &changes);
        for text in [text, String::from_utf8_lossy(&bytes).into_owned()] {
            // What parses prints, and parses again.
            if let Ok(program) = LoopProgram::parse(&text, &[]) {
                let printed = program.to_string();
                let again = LoopProgram::parse(&printed, &program.elided_constants());
                prop_assert_eq!(again.map(|p| p.to_string()).map_err(|e| e.to_string()), Ok(printed));
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
}
