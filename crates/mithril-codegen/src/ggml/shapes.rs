//! What the functions of ggml assert of their arguments, and the types of what they return.

use super::functions::{Arguments, like, sizes};
use super::types::{DIMENSIONS, Element, Type};

/// Bytes that `ggml_conv_2d_direct` has for copies of patches (`GGML_IM2COL_WORK_SIZE`).
const PATCHES: i64 = 16 << 20;

type Checked = Result<Type, String>;

fn refuse(holds: bool, reason: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(reason()) }
}

/// Whether a type is one that a tensor can have.
pub fn is_sound(ty: &Type) -> Result<(), String> {
    refuse(ty.sizes.iter().all(|&n| n >= 1), || format!("{ty} has no elements"))?;
    refuse(ty.strides.iter().all(|&n| n >= 0), || format!("{ty} goes backwards"))?;
    refuse(ty.sizes[0] % ty.element.block() == 0, || {
        format!("{ty}: rows of {} elements are not blocks of {}", ty.sizes[0], ty.element.block())
    })
}

fn float(ty: &Type) -> Result<(), String> {
    refuse(ty.element == Element::F32, || format!("{ty} is not f32"))
}

fn rows_of(ty: &Type) -> Result<(), String> {
    refuse(ty.strides[0] == ty.element.bytes(), || format!("{ty}: elements of a row are not neighbors"))
}

/// Also where rows have one element: kernels look at its stride.
fn contiguous(ty: &Type) -> Result<(), String> {
    refuse(ty.is_contiguous() && ty.strides[0] == ty.element.bytes(), || format!("{ty} is not contiguous"))
}

/// Element by element, row by row.
pub fn unary(arguments: &Arguments<'_>) -> Checked {
    let a = arguments.tensor(0);
    float(a)?;
    rows_of(a)?;
    Ok(like(a, Element::F32))
}

/// Element by element, all in one piece.
pub fn unary_contiguous(arguments: &Arguments<'_>) -> Checked {
    let a = arguments.tensor(0);
    contiguous(a)?;
    // `ggml_is_padded_1d`, which looks at dimensions of one element too.
    let s = a.strides;
    refuse(s[2] == s[1] * a.sizes[1] && s[3] == s[2] * a.sizes[2], || format!("{a} has gaps"))?;
    unary(arguments)
}

/// With a slope, never in place.
pub fn leaky_relu(arguments: &Arguments<'_>) -> Checked {
    refuse(arguments.int(1) == 0, || "what it reads would be overwritten".into())?;
    refuse(arguments.tensor(0).is_contiguous_from(1), || format!("{} has gaps", arguments.tensor(0)))?;
    unary(arguments)
}

/// The second is repeated to the first.
pub fn binary(arguments: &Arguments<'_>) -> Checked {
    let (a, b) = (arguments.tensor(0), arguments.tensor(1));
    float(a)?;
    float(b)?;
    rows_of(a)?;
    refuse(b.repeats_to(&a.sizes), || format!("{b} does not repeat to {a}"))?;
    Ok(like(a, Element::F32))
}

/// All repeated to the largest: each has the size of the result, or 1, along each dimension.
pub fn broadcast(arguments: &Arguments<'_>) -> Checked {
    let mut whole = [1; DIMENSIONS];
    for ty in arguments.tensors() {
        whole.iter_mut().zip(ty.sizes).for_each(|(size, n)| *size = n.max(*size));
    }
    for ty in arguments.tensors() {
        float(ty)?;
        rows_of(ty)?;
        let fits = ty.sizes.iter().zip(whole).all(|(&own, n)| own == n || own == 1);
        refuse(fits, || format!("{ty} does not repeat to {whole:?}"))?;
    }
    Ok(Type::contiguous(Element::F32, whole))
}

/// `a` has rows of weights, `b` rows of values; every row of one meets every row of the other.
pub fn mul_mat(arguments: &Arguments<'_>) -> Checked {
    let (a, b) = (arguments.tensor(0), arguments.tensor(1));
    refuse(a.element.is_computed(), || format!("{a} is not a matrix of weights"))?;
    float(b)?;
    refuse(a.sizes[0] == b.sizes[0], || format!("rows of {a} and {b} have different lengths"))?;
    refuse(b.sizes[2] % a.sizes[2] == 0 && b.sizes[3] % a.sizes[3] == 0, || {
        format!("matrices of {a} do not repeat to those of {b}")
    })?;
    rows_of(a)?;
    rows_of(b)?;
    refuse(a.strides[1] >= a.strides[0], || format!("{a} is transposed"))?;
    Ok(Type::contiguous(Element::F32, [a.sizes[1], b.sizes[1], b.sizes[2], b.sizes[3]]))
}

/// `a` has as many rows as `b`: products of each two of a place, added up over the rows.
pub fn out_prod(arguments: &Arguments<'_>) -> Checked {
    let (a, b) = (arguments.tensor(0), arguments.tensor(1));
    float(a)?;
    float(b)?;
    refuse(a.sizes[1] == b.sizes[1], || format!("{a} and {b} have different numbers of rows"))?;
    refuse(b.sizes[2] % a.sizes[2] == 0 && b.sizes[3] % a.sizes[3] == 0, || {
        format!("matrices of {a} do not repeat to those of {b}")
    })?;
    rows_of(a)?;
    refuse(a.strides[1] >= a.strides[0], || format!("{a} is transposed"))?;
    Ok(Type::contiguous(Element::F32, [a.sizes[0], b.sizes[0], b.sizes[2], b.sizes[3]]))
}

/// Of each row; the number is not negative.
pub fn norm(arguments: &Arguments<'_>) -> Checked {
    refuse(arguments.float(0) >= 0.0, || format!("{} is below 0", arguments.float(0)))?;
    unary(arguments)
}

/// Of each row, with a mask that is added.
pub fn soft_max(arguments: &Arguments<'_>) -> Checked {
    let a = arguments.tensor(0);
    float(a)?;
    contiguous(a)?;
    if let Some(mask) = arguments.optional(1) {
        refuse(matches!(mask.element, Element::F32 | Element::F16), || {
            format!("the mask {mask} is not a float")
        })?;
        contiguous(mask)?;
        refuse(
            mask.sizes[0] == a.sizes[0]
                && mask.sizes[1] >= a.sizes[1]
                && a.sizes[2] % mask.sizes[2] == 0
                && a.sizes[3] % mask.sizes[3] == 0,
            || format!("the mask {mask} does not fit {a}"),
        )?;
    }
    refuse(arguments.float(1) == 0.0 || arguments.optional(1).is_some(), || "a bias needs a mask".into())?;
    Ok(like(a, Element::F32))
}

/// Queries `[width, query, head, batch]` over keys and values, several heads of queries to one of those; its result is
/// `[width, head, query, batch]`. What is read beyond the assertions of ggml is in range, too.
pub fn flash_attention(arguments: &Arguments<'_>) -> Checked {
    let [q, k, v] = [0, 1, 2].map(|i| arguments.tensor(i));
    for ty in [q, k, v] {
        float(ty)?;
        rows_of(ty)?;
    }
    refuse(q.sizes[0] == k.sizes[0], || format!("rows of {q} and {k} have different lengths"))?;
    refuse(k.sizes[1..] == v.sizes[1..], || format!("there are not as many {v} as {k}"))?;
    refuse(q.sizes[2] % k.sizes[2] == 0 && q.sizes[3] == k.sizes[3], || {
        format!("heads of {k} do not repeat to those of {q}")
    })?;
    if let Some(mask) = arguments.optional(3) {
        refuse(mask.element == Element::F16, || format!("the mask {mask} is not f16"))?;
        contiguous(mask)?;
        refuse(
            mask.sizes[0] == k.sizes[1]
                && mask.sizes[1] >= q.sizes[1]
                && q.sizes[2] % mask.sizes[2] == 0
                && q.sizes[3] % mask.sizes[3] == 0,
            || format!("the mask {mask} does not fit {q} and {k}"),
        )?;
    }
    refuse(arguments.float(1) == 0.0 && arguments.float(2) == 0.0, || "a bias or a soft cap".into())?;
    Ok(Type::contiguous(Element::F32, [v.sizes[0], q.sizes[2], q.sizes[1], q.sizes[3]]))
}

/// Pairs of each row, turned by angles that are repeated along the other dimensions.
pub fn rotate_pairs(arguments: &Arguments<'_>) -> Checked {
    let (x, cosines) = (arguments.tensor(0), arguments.tensor(1));
    for angles in [cosines, arguments.tensor(2)] {
        float(angles)?;
        rows_of(angles)?;
        let others = (1..DIMENSIONS).all(|d| angles.sizes[d] == x.sizes[d] || angles.sizes[d] == 1);
        refuse(others && angles.sizes[0] * 2 == x.sizes[0], || format!("{angles} do not rotate {x}"))?;
    }
    unary(arguments)
}

/// One number of each row.
pub fn sum_rows(arguments: &Arguments<'_>) -> Checked {
    let a = arguments.tensor(0);
    unary(arguments)?;
    let mut sizes = a.sizes;
    sizes[0] = 1;
    Ok(Type::contiguous(Element::F32, sizes))
}

/// Along each row.
pub fn cumsum(arguments: &Arguments<'_>) -> Checked {
    unary(arguments)
}

/// Rows by their numbers, which have to lie within the table.
pub fn get_rows(arguments: &Arguments<'_>) -> Checked {
    let (a, b) = (arguments.tensor(0), arguments.tensor(1));
    refuse(b.element == Element::I32, || format!("{b} holds no positions"))?;
    refuse(a.element.is_computed() || a.element == Element::I32, || format!("{a} is not a table"))?;
    rows_of(a)?;
    refuse(a.sizes[2] == b.sizes[1] && a.sizes[3] == b.sizes[2] && b.sizes[3] == 1, || {
        format!("{b} are not rows of {a}")
    })?;
    let element = if a.element == Element::I32 { a.element } else { Element::F32 };
    Ok(Type::contiguous(element, [a.sizes[0], b.sizes[0], b.sizes[1], b.sizes[2]]))
}

/// Rows `b` written over those of `a` whose numbers `c` says; the result is `a`, in its memory.
pub fn set_rows(arguments: &Arguments<'_>) -> Checked {
    let [a, b, c] = [0, 1, 2].map(|i| arguments.tensor(i));
    refuse(c.element == Element::I32, || format!("{c} holds no positions"))?;
    float(a)?;
    float(b)?;
    rows_of(a)?;
    rows_of(b)?;
    let same = a.sizes[0] == b.sizes[0] && a.sizes[2..] == b.sizes[2..];
    refuse(same && b.sizes[1] == c.sizes[0], || format!("{b} are not rows of {a} at {c}"))?;
    refuse(b.sizes[2] % c.sizes[1] == 0 && b.sizes[3] % c.sizes[2] == 0 && c.sizes[3] == 1, || {
        format!("{c} does not repeat to {b}")
    })?;
    Ok(*a)
}

/// One behind the other.
pub fn concat(arguments: &Arguments<'_>) -> Checked {
    let (a, b) = (arguments.tensor(0), arguments.tensor(1));
    let [axis] = arguments.ints(0)?;
    refuse((0..DIMENSIONS as i64).contains(&axis), || format!("there is no dimension {axis}"))?;
    refuse(a.element == b.element && !a.element.is_quantized(), || format!("{a} and {b} are not alike"))?;
    let mut sizes = a.sizes;
    sizes[axis as usize] += b.sizes[axis as usize];
    for i in (0..DIMENSIONS).filter(|&i| i != axis as usize) {
        refuse(a.sizes[i] == b.sizes[i], || format!("{a} and {b} have different sizes"))?;
    }
    Ok(Type::contiguous(a.element, sizes))
}

/// Zeros before and behind.
pub fn pad(arguments: &Arguments<'_>) -> Checked {
    let a = arguments.tensor(0);
    float(a)?;
    rows_of(a)?;
    let amounts = arguments.ints::<8>(0)?;
    refuse(amounts.iter().all(|&n| n >= 0), || "padding is below 0".into())?;
    let mut sizes = a.sizes;
    for (i, size) in sizes.iter_mut().enumerate() {
        *size += amounts[2 * i] + amounts[2 * i + 1];
    }
    Ok(Type::contiguous(Element::F32, sizes))
}

/// The size that a convolution leaves of one.
fn reduced(size: i64, kernel: i64, [stride, padding, dilation]: [i64; 3]) -> Result<i64, String> {
    refuse(stride > 0 && dilation > 0 && padding >= 0, || {
        format!("stride {stride}, padding {padding}, dilation {dilation}")
    })?;
    let left = size + 2 * padding - dilation * (kernel - 1) - 1;
    refuse(left >= 0, || format!("a kernel of {kernel} is larger than {size} with its padding"))?;
    Ok(left / stride + 1)
}

/// The sizes of what a convolution returns, apart from its channels.
fn convolved(arguments: &Arguments<'_>) -> Result<[i64; 2], String> {
    let (kernel, input) = (arguments.tensor(0), arguments.tensor(1));
    refuse(matches!(kernel.element, Element::F32 | Element::F16), || format!("the kernel {kernel}"))?;
    contiguous(kernel)?;
    float(input)?;
    let [s0, s1, p0, p1, d0, d1] = arguments.ints(0)?;
    let width = reduced(input.sizes[0], kernel.sizes[0], [s0, p0, d0])?;
    let height = reduced(input.sizes[1], kernel.sizes[1], [s1, p1, d1])?;
    Ok([width, height])
}

/// Of all channels.
pub fn conv_2d(arguments: &Arguments<'_>) -> Checked {
    let (kernel, input) = (arguments.tensor(0), arguments.tensor(1));
    let [width, height] = convolved(arguments)?;
    refuse(kernel.sizes[2] == input.sizes[2], || format!("{kernel} and {input} have different channels"))?;
    let patch = kernel.sizes[..3].iter().product::<i64>() * kernel.element.bytes();
    refuse(patch + kernel.sizes[3] * 4 <= PATCHES, || {
        format!("a patch of {kernel} does not fit its memory")
    })?;
    Ok(Type::contiguous(Element::F32, [width, height, kernel.sizes[3], input.sizes[3]]))
}

/// Of each channel on its own.
pub fn conv_2d_depthwise(arguments: &Arguments<'_>) -> Checked {
    let (kernel, input) = (arguments.tensor(0), arguments.tensor(1));
    let [width, height] = convolved(arguments)?;
    refuse(kernel.element == Element::F32, || format!("the kernel {kernel}"))?;
    contiguous(input)?;
    refuse(!has_channels_first(input), || format!("{input}: channels are taken for rows"))?;
    refuse(kernel.sizes[2] == 1 && kernel.sizes[3] == input.sizes[2], || {
        format!("{kernel} has not one kernel per channel of {input}")
    })?;
    Ok(Type::contiguous(Element::F32, [width, height, input.sizes[2], input.sizes[3]]))
}

/// `ggml_is_contiguous_channels`, for which the result would have other strides.
fn has_channels_first(ty: &Type) -> bool {
    let s = ty.strides;
    s[0] > s[2] && s[1] > s[0] && s[2] == ty.element.bytes()
}

/// The greatest of, or the sum over a window divided by its size.
pub fn pool_2d(arguments: &Arguments<'_>) -> Checked {
    let a = arguments.tensor(0);
    float(a)?;
    contiguous(a)?;
    let [op, k0, k1, s0, s1] = arguments.ints(0)?;
    refuse(op == 0 || op == 1, || format!("there is no pooling {op}"))?;
    let padding = [arguments.float(5), arguments.float(6)];
    refuse(padding.iter().all(|p| p.fract() == 0.0 && *p >= 0.0), || {
        "padding is not a number of elements".into()
    })?;
    refuse(k0 > 0 && k1 > 0, || format!("a window of {k0}×{k1}"))?;
    refuse(padding[0] < k0 as f64 && padding[1] < k1 as f64, || "a window lies in the padding".into())?;
    let width = reduced(a.sizes[0], k0, [s0, padding[0] as i64, 1])?;
    let height = reduced(a.sizes[1], k1, [s1, padding[1] as i64, 1])?;
    Ok(Type::contiguous(Element::F32, [width, height, a.sizes[2], a.sizes[3]]))
}

/// The greatest of a window.
pub fn max_pool(arguments: &Arguments<'_>) -> Checked {
    let a = arguments.tensor(0);
    float(a)?;
    contiguous(a)?;
    let [k0, k1, s0, s1, p0, p1] = arguments.ints(0)?;
    refuse(k0 > 0 && k1 > 0, || format!("a window of {k0}×{k1}"))?;
    refuse((0..k0).contains(&p0) && (0..k1).contains(&p1), || "a window lies in the padding".into())?;
    // They are kept as f32.
    refuse([k0, k1, s0, s1].iter().all(|&n| n < 1 << 24), || "a window is too large".into())?;
    let (width, height) = (reduced(a.sizes[0], k0, [s0, p0, 1])?, reduced(a.sizes[1], k1, [s1, p1, 1])?);
    Ok(Type::contiguous(Element::F32, [width, height, a.sizes[2], a.sizes[3]]))
}

/// Backwards along the dimensions whose bits are set.
pub fn reverse(arguments: &Arguments<'_>) -> Checked {
    refuse((0..1 << DIMENSIONS).contains(&arguments.int(0)), || {
        format!("{} are not dimensions", arguments.int(0))
    })?;
    unary(arguments)
}

/// As often as it takes to fill the sizes.
pub fn repeat(arguments: &Arguments<'_>) -> Checked {
    let a = arguments.tensor(0);
    let to = sizes(arguments)?;
    refuse(matches!(a.element, Element::F32 | Element::I32), || format!("{a} cannot be repeated"))?;
    rows_of(a)?;
    refuse(a.repeats_to(&to), || format!("{a} does not repeat to {to:?}"))?;
    Ok(Type::contiguous(a.element, to))
}

/// A copy without gaps.
pub fn cont(arguments: &Arguments<'_>) -> Checked {
    let a = arguments.tensor(0);
    refuse(!a.element.is_quantized(), || format!("{a} cannot be copied"))?;
    Ok(like(a, a.element))
}

/// A copy with other elements.
pub fn cast(arguments: &Arguments<'_>) -> Checked {
    let a = arguments.tensor(0);
    let to = arguments.element.ok_or("no type of elements is given")?;
    let is_float = |e: Element| matches!(e, Element::F32 | Element::F16 | Element::BF16);
    refuse(is_float(to), || format!("{to} is not written by a cast"))?;
    refuse(a.element.is_computed(), || format!("{a} is not read by a cast to {to}"))?;
    refuse(!a.element.is_quantized() || (a.is_contiguous() && to == Element::F32), || {
        format!("{a} is not read by a cast to {to}")
    })?;
    Ok(like(a, to))
}

/// The same elements with other sizes.
pub fn reshape(arguments: &Arguments<'_>) -> Checked {
    let a = arguments.tensor(0);
    let to = Type::contiguous(a.element, sizes(arguments)?);
    refuse(a.is_contiguous(), || format!("{a} is not contiguous"))?;
    refuse(a.elements() == to.elements(), || format!("{a} is not as large as {to}"))?;
    is_sound(&to)?;
    Ok(to)
}

/// Some of the elements: sizes, strides in bytes, and the byte of the first.
pub fn view(arguments: &Arguments<'_>) -> Checked {
    let a = arguments.tensor(0);
    let mut to = Type::contiguous(a.element, sizes(arguments)?);
    let data = to.bytes();
    for i in 1..DIMENSIONS {
        to.strides[i] = arguments.int(DIMENSIONS + i - 1);
    }
    let offset = arguments.int(7);
    is_sound(&to)?;
    refuse(offset >= 0 && offset % a.element.bytes() == 0, || format!("a view begins at byte {offset}"))?;
    refuse(to.strides.iter().all(|s| s % a.element.bytes() == 0), || {
        format!("{to} begins within an element")
    })?;
    refuse(offset + data.max(to.bytes()) <= a.bytes(), || format!("{to} at byte {offset} goes beyond {a}"))?;
    Ok(to)
}

/// Dimension `i` becomes the one that number `i` says.
pub fn permute(arguments: &Arguments<'_>) -> Checked {
    let a = arguments.tensor(0);
    let axes = sizes(arguments)?;
    let mut to = *a;
    let mut seen = [false; DIMENSIONS];
    for (from, &axis) in axes.iter().enumerate() {
        let at = usize::try_from(axis).ok().filter(|&at| at < DIMENSIONS && !seen[at]);
        let at = at.ok_or_else(|| format!("{axes:?} is not an order of dimensions"))?;
        seen[at] = true;
        (to.sizes[at], to.strides[at]) = (a.sizes[from], a.strides[from]);
    }
    Ok(to)
}
