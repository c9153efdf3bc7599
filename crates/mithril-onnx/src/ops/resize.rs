//! Images of another size.

use mithril_ir::{Dim, Lit, Result, ValueId};

use super::{Table, one};
use crate::context::{Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("Resize", resize),
    ("Upsample", upsample),
    ("GridSample", grid_sample),
    ("AffineGrid", |u| {
        let (theta, size) = (u.x(0)?, u.dims(1)?);
        let align = u.flag("align_corners", false)?;
        one(op!(u, "affine_grid", theta, size, align)?)
    }),
];

/// Sizes and scales of the spatial axes; an axis in front of them has to keep its size.
fn spatial(u: &Use<'_>, x: ValueId, all: Vec<f64>, axes: Option<Vec<i64>>) -> Result<Vec<f64>> {
    let rank = u.rank(x);
    let mut scales = vec![1.0; rank];
    let axes = axes.unwrap_or_else(|| (0..rank as i64).collect());
    if axes.len() != all.len() {
        return Err(malformed(format!("{} scales are given for {} axes", all.len(), axes.len())));
    }
    for (axis, scale) in axes.into_iter().zip(all) {
        scales[Use::axis(axis, rank)?] = scale;
    }
    if rank < 3 || scales[..2].iter().any(|&s| s != 1.0) {
        return Err(Use::refuse("it resizes other axes than those of an image [batch, channels, ...]"));
    }
    Ok(scales.split_off(2))
}

fn upsample(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let scales = if u.has(1) { u.constant(1)?.to_f64s() } else { u.floats("scales").unwrap_or_default() };
    let scales = spatial(u, x, scales, None)?;
    match u.text("mode", "nearest")?.as_str() {
        "nearest" => one(op!(
            u,
            "interpolate",
            x,
            Lit::None,
            scales.into_iter().map(Lit::from).collect::<Vec<_>>(),
            "nearest"
        )?),
        other => Err(Use::refuse(format!("mode {other:?} takes the corners as they are: use Resize"))),
    }
}

/// How places of the result are those of the input.
fn place_of(u: &Use<'_>) -> Result<String> {
    u.text("coordinate_transformation_mode", if u.opset < 11 { "asymmetric" } else { "half_pixel" })
}

#[allow(clippy::too_many_lines, reason = "what cannot be converted is refused step by step")]
fn resize(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let (scales_at, sizes_at) = if u.opset < 11 { (1, usize::MAX) } else { (2, 3) };
    let axes = u.ints("axes")?;
    let rank = u.rank(x);
    if rank < 3 {
        return Err(Use::refuse("its input is no image [batch, channels, ...]"));
    }
    let (mut scales, mut sizes) = (None, None);
    if place_of(u)? != "tf_crop_and_resize" {
        // The region of interest and what lies outside of it.
        u.ignore(&["extrapolation_value"]);
        u.has(1);
    }
    u.ignore(&["keep_aspect_ratio_policy"]);
    let is_given = |u: &Use<'_>, i: usize| u.has(i) && u.constant(i).map_or(true, |t| !t.is_empty());
    if is_given(u, scales_at) {
        scales = Some(spatial(u, x, u.constant(scales_at)?.to_f64s(), axes)?);
    } else if sizes_at != usize::MAX && is_given(u, sizes_at) {
        if u.text("keep_aspect_ratio_policy", "stretch")? != "stretch" {
            return Err(Use::refuse("keep_aspect_ratio_policy is not supported"));
        }
        let given = u.dims(sizes_at)?;
        let mut all = u.shape(x).to_vec();
        let axes = axes.unwrap_or_else(|| (0..rank as i64).collect());
        if axes.len() != given.len() {
            return Err(malformed("sizes do not fit the axes"));
        }
        for (axis, size) in axes.into_iter().zip(given) {
            all[Use::axis(axis, rank)?] = size;
        }
        if all[..2] != u.shape(x)[..2] {
            return Err(Use::refuse("it resizes other axes than those of an image [batch, channels, ...]"));
        }
        sizes = Some(all.split_off(2));
    } else {
        return Err(malformed("neither scales nor sizes are given"));
    }
    if u.flag("antialias", false)? {
        return Err(Use::refuse("antialias is not supported"));
    }
    if u.flag("exclude_outside", false)? {
        return Err(Use::refuse("exclude_outside is not supported"));
    }
    let place = place_of(u)?;
    let (mode, rounding) = (u.text("mode", "nearest")?, u.text("nearest_mode", "round_prefer_floor")?);
    let cubic = u.float("cubic_coeff_a", -0.75)?;
    let is_one = sizes.as_ref().is_some_and(|s: &Vec<Dim>| s.iter().any(|n| n.is(1)));
    let fits = scales.as_ref().is_none_or(|s| {
        let shape = u.shape(x);
        s.iter().zip(&shape[2..]).all(|(s, n)| n.known().is_some_and(|n| (s * n as f64).fract() == 0.0))
    });
    if place == "align_corners" && !fits {
        return Err(Use::refuse(
            "coordinates \"align_corners\" with scales that give no whole sizes are not supported",
        ));
    }
    let linear = ["linear", "bilinear", "trilinear"];
    let whole = scales.as_ref().is_some_and(|s| s.iter().all(|x| x.fract() == 0.0 && *x >= 1.0));
    let (ours, align) = match (mode.as_str(), place.as_str(), rounding.as_str()) {
        ("nearest", "asymmetric", "floor") => ("nearest", false),
        // Halfway places do not occur between whole factors that are odd; with even ones rounding down or up differ.
        ("nearest", "half_pixel", "round_prefer_ceil") => ("nearest-exact", false),
        ("nearest", "half_pixel" | "pytorch_half_pixel", "round_prefer_floor") if whole => ("nearest", false),
        ("linear", "half_pixel", _) => ("linear", false),
        ("linear", "pytorch_half_pixel", _) if !is_one => ("linear", false),
        ("linear", "align_corners", _) => ("linear", true),
        ("cubic", "half_pixel", _) if cubic == -0.75 && rank == 4 => ("bicubic", false),
        ("cubic", "pytorch_half_pixel", _) if cubic == -0.75 && rank == 4 && !is_one => ("bicubic", false),
        ("cubic", "align_corners", _) if cubic == -0.75 && rank == 4 => ("bicubic", true),
        _ => {
            let text = format!(
                "mode {mode:?} with coordinates {place:?} (nearest_mode {rounding:?}) is not supported"
            );
            return Err(Use::refuse(text));
        }
    };
    let ours = if ours == "linear" { *linear.get(rank - 3).unwrap_or(&"linear") } else { ours };
    let dtype = u.dtype(x);
    let scales: Lit = scales.map_or(Lit::None, Lit::tuple);
    let sizes: Lit = sizes.map_or(Lit::None, Lit::tuple);
    let found = op!(u, "interpolate", x, sizes, scales, ours, align)?;
    one(u.cast(found, dtype)?)
}

fn grid_sample(u: &mut Use<'_>) -> Outputs {
    let (x, grid) = (u.x(0)?, u.x(1)?);
    let mode = match u.text("mode", if u.opset < 20 { "bilinear" } else { "linear" })?.as_str() {
        "linear" | "bilinear" => "bilinear",
        "cubic" | "bicubic" => "bicubic",
        "nearest" => "nearest",
        other => return Err(malformed(format!("the mode is {other:?}"))),
    };
    let (padding, align) = (u.text("padding_mode", "zeros")?, u.flag("align_corners", false)?);
    one(op!(u, "grid_sample", x, grid, mode, &*padding, align)?)
}
