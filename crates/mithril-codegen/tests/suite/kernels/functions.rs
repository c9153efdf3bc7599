//! Functions of vectors against their definitions, lane by lane: of all pairs of some numbers, infinities and NaN.

use mithril_codegen::c::kernels::Target;

use super::program::Cases;

const VECTORS: &str = include_str!("../../../src/c/kernels/common/vector.c");
const FUNCTIONS: &str = include_str!("../../../src/c/kernels/common/vector_functions.c");

/// Calls over vectors `a` and `b`, and what a lane of them is of numbers `a` and `b`.
const DEFINED: [(&str, &str); 8] = [
    ("mithril_relu_vector(a)", "a != a ? a : a > 0 ? a : 0"),
    ("mithril_leaky_relu_vector(a, 0.125f)", "a != a ? a : a > 0 ? a : a / 8"),
    ("mithril_maximum_vector(a, b)", "a != a || b != b ? NAN : a < b ? b : a"),
    ("mithril_maximum_vector(1.5f, b)", "b != b ? NAN : b < 1.5 ? 1.5 : b"),
    ("mithril_minimum_vector(a, b)", "a != a || b != b ? NAN : a > b ? b : a"),
    ("mithril_minimum_vector(a, -1.5f)", "a != a ? NAN : a > -1.5 ? -1.5 : a"),
    ("mithril_hard_sigmoid_vector(a)", "a != a ? a : a <= -3 ? 0 : a >= 3 ? 1 : a / 6 + 0.5"),
    // An infinity times zero is NaN.
    (
        "mithril_hard_swish_vector(a)",
        "a != a || a == -INFINITY ? NAN : a <= -3 ? 0 : a >= 3 ? a : a * (a + 3) / 6",
    ),
];

/// One case for each function.
pub fn cases(target: Target) -> Cases {
    let body = |(call, expected): (&str, &str)| {
        format!(
            "const float numbers[] = {{NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-40f, -1e-40f, 1.5f, -1.5f, 2.75f, -2.75f, \
             3.0f, -3.0f, 3.25f, -3.25f, 7.0f, -7.0f, 3e38f}};
enum {{ COUNT = sizeof numbers / sizeof *numbers, LANES = MITHRIL_VECTOR }};
for (long first = 0; first < COUNT * COUNT; first += LANES) {{
    float left[LANES], right[LANES], actual[LANES];
    for (long lane = 0; lane < LANES; lane++) {{
        const long pair = (first + lane) % (COUNT * COUNT);
        left[lane] = numbers[pair / COUNT];
        right[lane] = numbers[pair % COUNT];
    }}
    {{
        const mithril_f32 a = MITHRIL_LOAD(f32, left), b = MITHRIL_LOAD(f32, right);
        (void)a; (void)b;
        MITHRIL_STORE(f32, actual, {call});
    }}
    for (long lane = 0; lane < LANES; lane++) {{
        const double a = left[lane], b = right[lane];
        (void)a; (void)b;
        const double expected = {expected};
        if (isnan(expected) ? isnan(actual[lane]) : (double)actual[lane] == expected
            || fabs((double)actual[lane] - expected) <= 2e-7 * fabs(expected) + 3e-45)
            continue;
        failures++;
        printf(\"%s of %g, %g: %g, not %g\\n\", \"{call}\", a, b, (double)actual[lane], expected);
    }}
}}"
        )
    };
    Cases {
        source: format!("{}{FUNCTIONS}", VECTORS.replace("@lanes@", &target.lanes.to_string())),
        bodies: DEFINED.into_iter().map(body).collect(),
    }
}
