//! The only way of a user's name into generated C: an identifier that nobody else has.

use mithril_ir::unique_names::UniqueNames;

/// Longest identifier made from a name; longer names keep their end, which says most.
const MAX_LENGTH: usize = 40;

/// Keywords of C and C++, macros of headers in small letters, and what functions call their own: sorted.
#[rustfmt::skip]
const RESERVED: &[&str] = &[
    "alignas", "alignof", "alloca", "and", "arena", "asm", "assert", "auto", "bool", "break", "case",
    "catch", "char", "class", "complex", "const", "constexpr", "context", "continue", "default", "delete",
    "do", "double", "else", "enum", "errno", "error", "explicit", "export", "extern", "false", "far",
    "float", "for", "friend", "goto", "if", "imaginary", "inline", "inputs", "int", "interface",
    "iteration", "lane", "linux", "long", "main", "math_errhandling", "mutable", "namespace", "near", "new", "noreturn", "not",
    "nullptr", "offsetof", "offsets", "operator", "or", "outputs", "own", "packed", "pool", "private", "protected",
    "public", "register", "restrict", "return", "shared", "short", "signed", "sizeof", "static",
    "static_assert", "stderr", "stdin", "stdout", "struct", "switch", "template", "this", "thread",
    "thread_local", "threads", "throw", "true", "try", "turn", "typedef", "typename", "typeof", "union",
    "unix", "unsigned", "using", "virtual", "void", "volatile", "wchar", "while", "xor", "zero",
];

/// Functions of libc and libm, the latter also with an `f` behind: sorted.
#[rustfmt::skip]
const LIBC: &[&str] = &[
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh",
    "erf", "erfc", "exp", "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin", "fmod", "frexp",
    "gamma", "hypot", "ilogb", "isfinite", "isgreater", "isinf", "isless", "isnan", "isnormal", "j0", "j1",
    "jn", "ldexp", "lgamma", "llrint", "llround", "log", "log10", "log1p", "log2", "logb", "lrint",
    "lround", "memchr", "memcmp", "memcpy", "memmove", "memset", "modf", "nan", "nearbyint", "nextafter",
    "nexttoward", "pow", "remainder", "remquo", "rint", "round", "scalbln", "scalbn", "signbit", "sin",
    "sinh", "sqrt", "strcat", "strchr", "strcmp", "strcpy", "strlen", "strncmp", "tan", "tanh", "tgamma",
    "trunc", "y0", "y1", "yn",
];

/// Stems of the names that functions give to values, followed by a number.
const STEMS: &[&str] = &[
    "all", "any", "best", "block", "count", "i", "largest", "position", "product", "smallest", "sum", "sums",
    "t",
];

/// Gives names.
#[derive(Debug)]
pub struct Namer(UniqueNames);

impl Default for Namer {
    fn default() -> Self {
        Self(UniqueNames::numbered_from(2))
    }
}

impl Namer {
    /// An identifier that says `name`.
    pub fn name(&mut self, name: &str) -> String {
        self.0.fresh(&identifier(name))
    }
}

fn identifier(name: &str) -> String {
    let mut text: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    while text.contains("__") {
        text = text.replace("__", "_");
    }
    let text = text.trim_matches('_');
    let start = text.len().saturating_sub(MAX_LENGTH);
    let end = text[start..].trim_start_matches('_');
    // Whole words, where these leave enough.
    let words = end.split_once('_').map(|(_, words)| words);
    let text = words.filter(|words| start > 0 && words.len() > MAX_LENGTH / 2).unwrap_or(end);
    let is_own = {
        let stem = text.trim_end_matches(|c: char| c.is_ascii_digit());
        let function = text.strip_suffix('f').unwrap_or(text);
        let is_function = [text, function].iter().any(|name| LIBC.binary_search(name).is_ok());
        // `EOF`, `M_PI`: a header may have a macro of that name.
        let is_macro = !text.contains(|c: char| c.is_ascii_lowercase());
        text.len() < 2
            || is_macro
            || is_function
            || text.starts_with("mithril")
            || (stem.len() < text.len() && STEMS.contains(&stem))
    };
    match text {
        "" => "value".to_owned(),
        _ if text.starts_with(|c: char| c.is_ascii_digit()) => format!("value_{text}"),
        _ if is_own || text.ends_with("_t") || RESERVED.binary_search(&text).is_ok() => format!("{text}_"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_identifiers_and_differ() {
        assert!(RESERVED.is_sorted() && LIBC.is_sorted() && STEMS.is_sorted());
        let mut namer = Namer::default();
        let names = [
            "layer1.0.conv",
            "layer1 0 conv",
            "int",
            "x",
            "sum3",
            "7up",
            "é",
            "a\"; system(\"x",
            "size_t",
            "M_PI",
            "errno",
        ];
        let identifiers: Vec<String> = names.iter().map(|n| namer.name(n)).collect();
        assert_eq!(
            identifiers,
            [
                "layer1_0_conv",
                "layer1_0_conv_2",
                "int_",
                "x_",
                "sum3_",
                "value_7up",
                "value",
                "a_system_x",
                "size_t_",
                "M_PI_",
                "errno_"
            ]
        );
    }
}
