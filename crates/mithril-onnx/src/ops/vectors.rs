//! Vectors of features, as classical machine learning makes them.

use mithril_ir::{DType, Dim, Lit, Result, Tensor, ValueId};

use super::{Table, one};
use crate::context::{Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[("TfIdfVectorizer", tf_idf)];

/// Those of the domain `ai.onnx.ml`.
pub static LEARNING: Table = &[
    ("ArrayFeatureExtractor", |u| {
        let (x, places) = (u.x(0)?, u.x(1)?);
        let places = op!(u, "reshape", places, vec![-1_i64])?;
        let y = op!(u, "take", x, places, -1_i64)?;
        one(if u.rank(x) == 1 { op!(u, "expand_dims", y, 0_i64)? } else { y })
    }),
    ("Binarizer", |u| {
        let (x, threshold) = (u.x(0)?, u.float("threshold", 0.0)?);
        let (dtype, above) = (u.dtype(x), op!(u, "greater", x, threshold)?);
        one(u.cast(above, dtype)?)
    }),
];

/// Entries of the pool that are written out.
const MAX_GRAMS: usize = 4096;

/// How often each of the n-grams of a pool occurs, also with gaps, as it is or weighted.
#[allow(clippy::too_many_lines, reason = "arguments are checked one by one")]
fn tf_idf(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    if !u.texts("pool_strings").is_empty() {
        return Err(Use::refuse("a pool of texts (String) is not supported"));
    }
    let required =
        |list: Option<Vec<i64>>, name: &str| list.ok_or_else(|| malformed(format!("`{name}` is missing")));
    let pool = required(u.ints("pool_int64s")?, "pool_int64s")?;
    let counts = required(u.ints("ngram_counts")?, "ngram_counts")?;
    let places = required(u.ints("ngram_indexes")?, "ngram_indexes")?;
    let (least, most) = (u.int("min_gram_length", 1)?, u.int("max_gram_length", 1)?);
    let skips = u.int("max_skip_count", 0)?;
    let weights = u.floats("weights").unwrap_or_default();
    let mode = u.text("mode", "TF")?;
    let rank = u.rank(x);
    let length = u.shape(x).last().and_then(Dim::known);
    let (Some(length), 1 | 2) = (length, rank) else {
        return Err(Use::refuse("the length of its input is a symbol: give shapes"));
    };
    if places.len() > MAX_GRAMS || !(0..=64).contains(&skips) || counts.len() > 64 {
        return Err(Use::refuse(format!("its pool has more than {MAX_GRAMS} entries")));
    }
    let size = places.iter().max().map_or(0, |n| n + 1);
    if places.iter().any(|&n| n < 0)
        || size > 1 << 20
        || (!weights.is_empty() && weights.len() != places.len())
    {
        return Err(malformed("indexes or weights do not fit the pool"));
    }
    let mut columns: Vec<Option<ValueId>> = vec![None; size as usize];
    let mut gram = 0;
    for (i, &start) in counts.iter().enumerate() {
        let n = i as i64 + 1;
        let end = counts.get(i + 1).copied().unwrap_or(pool.len() as i64);
        let part = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        let part =
            part.and_then(|(a, b)| pool.get(a..b)).ok_or_else(|| malformed("`ngram_counts` do not fit"))?;
        for entry in part.chunks_exact(n as usize) {
            let (at, weight) = (places.get(gram).copied(), weights.get(gram).copied().unwrap_or(1.0));
            let at = at.ok_or_else(|| malformed("`ngram_indexes` are too few"))? as usize;
            gram += 1;
            if n < least || n > most {
                continue;
            }
            let mut total: Option<ValueId> = None;
            // Single elements have no gaps.
            for skip in 0..=if n == 1 { 0 } else { skips } {
                let Some(count) = occurrences(u, x, entry, skip + 1, length)? else { continue };
                total = Some(match total {
                    Some(sum) => op!(u, "add", sum, count)?,
                    None => count,
                });
            }
            let Some(total) = total else { continue };
            let scaled = match mode.as_str() {
                "TF" => total,
                "IDF" => {
                    let any = op!(u, "greater", total, 0.0)?;
                    op!(u, "where", any, weight, 0.0)?
                }
                "TFIDF" => op!(u, "multiply", total, weight)?,
                other => return Err(malformed(format!("the mode is {other:?}"))),
            };
            columns[at] = Some(u.cast(scaled, DType::F32)?);
        }
    }
    let rows = u.shape(x)[..rank - 1].to_vec();
    let zeros = op!(u, "full", rows, 0.0, DType::F32)?;
    let mut args = vec![u.cx.lit(-1_i64)];
    args.extend(columns.into_iter().map(|c| c.unwrap_or(zeros)));
    if args.len() == 1 {
        return Err(malformed("its pool is empty"));
    }
    one(u.op("stack", &args)?)
}

/// How often the entry occurs with its elements `step` apart, in float32; `None` if it is longer than the input.
fn occurrences(
    u: &mut Use<'_>,
    x: ValueId,
    entry: &[i64],
    step: i64,
    length: i64,
) -> Result<Option<ValueId>> {
    let reach = step * (entry.len() as i64 - 1);
    if reach >= length {
        return Ok(None);
    }
    let front = vec![Lit::None; u.rank(x) - 1];
    let mut all: Option<ValueId> = None;
    for (i, &word) in entry.iter().enumerate() {
        let from = step * i as i64;
        let bound = |n: i64| front.iter().cloned().chain([Lit::from(n)]).collect::<Vec<Lit>>();
        let part = op!(u, "slice", x, bound(from), bound(from + length - reach))?;
        let dtype = u.dtype(x);
        let word = u.cx.lit(Tensor::scalar(DType::I64, word));
        let word = u.cast(word, dtype)?;
        let same = op!(u, "equal", part, word)?;
        all = Some(match all {
            Some(other) => op!(u, "logical_and", other, same)?,
            None => same,
        });
    }
    let Some(all) = all else { return Ok(None) };
    let all = u.cast(all, DType::F32)?;
    op!(u, "sum", all, -1_i64).map(Some)
}
