//! The text form of graphs, for dumps, errors and tests. [`parse()`] reads what [`print()`] writes.
//!
//! ```text
//! graph {
//!   data %0 "input": f32[batch, 784]
//!   param %1 "linear.weight": f32[64, 784]
//!   %2 "hidden": f32[batch, 64] = linear(%0, %1, none) in "linear"
//!   %3: f32[batch] = sum(%2, (1,), false) in ""
//!   update %4 = %5
//!   return "output" = %3
//! }
//! ```

mod lexer;
mod literal;
mod parse;
mod print;

pub use lexer::Lexer;
pub use literal::{parse_dim, parse_literal, parse_type};
pub use parse::parse;
pub use print::print;

/// Whether a character is invisible or changes the display of its neighbors: controls, line separators, bidirectional marks
/// (which can disguise a text), joiners, fillers and tags. Names and sources must not contain any.
pub fn is_hidden(c: char) -> bool {
    let unseen =
        matches!(c, '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{3164}');
    let format = matches!(c, '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}');
    let marks = matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}');
    let beyond = matches!(c, '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}');
    c.is_control() || unseen || format || marks || beyond
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let text = "graph {\n  data %0 \"in\\\"put\": f32[n, 4]\n  param %1 \"w\": f32[1]\n  \
                    %2 \"h\": f32[n, 4] = multiply(%0, %1) in \"a.b\"\n  \
                    %3: f32[n, 4] = add(%2, 0.5) in \"a.b\"\n  \
                    %4: i64[n, 4] = cast(%3, i64) in \"\"\n  \
                    %5: i64[n, 4] = add(%4, 2*((n+1)//2)-3) in \"\"\n  \
                    return \"out\" = %3\n  return \"k\" = %5\n}\n";
        let graph = parse(text).unwrap();
        assert_eq!(print(&graph), text);
        crate::verify::verify(&graph, crate::DType::F32).unwrap();
    }

    #[test]
    fn literals_round_trip() {
        for text in [
            "none",
            "true",
            "3",
            "-0.5",
            "1e300",
            "NaN",
            "inf",
            "-inf",
            "\"a\\nb\"",
            "f32",
            "(1, (2,), ())",
            "0:n:-1",
            "none:none:none",
            "...",
            "training",
            "f32[2]{1.0, NaN}",
            "bool[]{true}",
            "i64[0]{}",
            "2*n+1",
        ] {
            let lit = parse_literal(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(lit.to_string(), text);
        }
    }

    #[test]
    fn malformed_text_is_an_error_with_a_line() {
        for text in [
            "",
            "graph {",
            "graph { %0 = nothing(%1) }",
            "graph { data %0 \"x\": f33[2] }",
            "graph { return \"x\" = %9 }",
            "graph {\n data %0 \"x\": f32[99999999999999999999]\n}",
            "graph { %0: f32[2] = add(%0, %0) in \"\" }",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().contains("line "), "{text}: {error}");
        }
    }

    #[test]
    fn literals_in_the_place_of_tensors_are_errors_when_run() {
        let graph = parse("graph { %0: f32[2] = exp(none) in \"\" return \"y\" = %0 }").unwrap();
        let error = crate::interp::run(&graph, &[]).unwrap_err();
        assert!(error.to_string().contains("is not a tensor"), "{error}");
    }

    #[test]
    fn deep_nesting_is_refused() {
        let text = "(".repeat(100_000);
        assert!(parse_literal(&text).is_err());
        assert!(parse_dim(&text).is_err());
    }
}
