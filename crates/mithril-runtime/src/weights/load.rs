//! From a checkpoint to the parameters of a compiled model.

use std::sync::Arc;

use mithril_ir::error::nearest;
use mithril_ir::{Code, Dim, Error, Result, Role, Shape, Tensor};
use mithril_model::zoo::names::Names;
use mithril_model::zoo::plan::{FileArray, ModelArray, Report, Step, plan};

use super::Checkpoint;
use crate::interpreter::{Executable, Tensors};

impl Executable {
    /// The parameters and states of the model with the values of a checkpoint.
    ///
    /// `layout` says whose names the checkpoint has (`"torchvision"`, `"transformers"`, `"openai"`); without it the
    /// one that fits best is taken, and the report says which. `names` say what arrays of the model, or parts of it, are called
    /// there, where no layout does. All must fit. What no checkpoint holds, the state of
    /// random numbers, starts as [`Executable::initial`] with seed 0 has it.
    ///
    /// ```
    /// use mithril_ir::Tensor;
    /// use mithril_model::{FlattenOptions, layers};
    /// use mithril_runtime::interpreter::Executable;
    /// use mithril_runtime::weights::{Checkpoint, save};
    ///
    /// # let folder = std::env::temp_dir().join(format!("mithril-load-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder).unwrap();
    /// # let path = folder.join("model.safetensors");
    /// let weight = Tensor::from_parts(&[1, 2], vec![2.0_f32, 3.0]);
    /// save(&path, &[("weight", &weight)], &[])?;
    ///
    /// let shapes = vec![("input".into(), vec!["batch".into(), 2.into()])];
    /// let options = FlattenOptions { shapes, ..Default::default() };
    /// let program = Executable::new(&layers::linear(1, false)?, &options)?;
    /// let (params, report) = program.load(&Checkpoint::open(&path)?, None, &[])?;
    /// assert_eq!(params["weight"].to_f64s(), [2.0, 3.0]);
    /// assert!(report.is_complete());
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok::<(), mithril_ir::Error>(())
    /// ```
    pub fn load(
        &self,
        checkpoint: &Checkpoint,
        layout: Option<&str>,
        names: &Names<'_>,
    ) -> Result<(Tensors, Report)> {
        let sizes =
            |shape: &Shape| shape.iter().map(|d| d.known().and_then(|n| usize::try_from(n).ok())).collect();
        let ours = self.kept().map(|input| ModelArray {
            name: input.name.to_string(),
            shape: sizes(&input.ty.shape),
            optional: input.role == Role::State && !input.ty.dtype.is_float(),
        });
        let theirs =
            checkpoint.iter().map(|(name, w)| FileArray { name: name.to_owned(), shape: w.shape().to_vec() });
        let mut plan = plan(&ours.collect::<Vec<_>>(), &theirs.collect::<Vec<_>>(), layout, None, names)?;
        set_copies_aside(&mut plan.report, &plan.steps, checkpoint);
        if !plan.report.is_complete() {
            return Err(misfit(&plan.report));
        }
        let mut values = Tensors::new();
        let mut open = Vec::new();
        for input in self.kept() {
            match plan.steps.iter().find(|step| *step.ours == *input.name) {
                Some(step) => {
                    let value = assembled(step, checkpoint)?.cast(input.ty.dtype);
                    values.insert(input.name.clone(), Arc::new(value));
                }
                None => open.push(input.name.clone()),
            }
        }
        let initial = self.compiled().initial(&open.iter().map(|n| &**n).collect::<Vec<_>>(), 0)?;
        values.extend(open.into_iter().zip(initial.into_iter().map(Arc::new)));
        Ok((values, plan.report))
    }
    /// The parameters and states of the model with the values of a checkpoint that has the model's own names, as those of
    /// [`read_onnx`](super::read_onnx) have. States that it does not hold start as [`Executable::initial`] with seed 0
    /// has them; tensors of which the model needs nothing are left out.
    ///
    /// # Errors
    /// When a parameter is missing or has another shape.
    ///
    /// ```
    /// use mithril_ir::Tensor;
    /// use mithril_model::{FlattenOptions, layers};
    /// use mithril_runtime::interpreter::Executable;
    /// use mithril_runtime::weights::{Checkpoint, save};
    ///
    /// # let folder = std::env::temp_dir().join(format!("mithril-named-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder).unwrap();
    /// # let path = folder.join("model.safetensors");
    /// save(&path, &[("weight", &Tensor::from_parts(&[1, 2], vec![2.0_f32, 3.0]))], &[])?;
    /// let shapes = vec![("input".into(), vec!["batch".into(), 2.into()])];
    /// let options = FlattenOptions { shapes, ..Default::default() };
    /// let program = Executable::new(&layers::linear(1, false)?, &options)?;
    /// assert_eq!(program.load_named(&Checkpoint::open(&path)?)?["weight"].to_f64s(), [2.0, 3.0]);
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok::<(), mithril_ir::Error>(())
    /// ```
    pub fn load_named(&self, checkpoint: &Checkpoint) -> Result<Tensors> {
        let (mut values, mut open) = (Tensors::new(), Vec::new());
        for input in self.kept() {
            let Some(weight) = checkpoint.get(&input.name) else {
                if input.role == Role::Param {
                    let message = format!("there are no values for the parameter {:?}", &*input.name);
                    let names = checkpoint.iter().map(|(name, _)| name);
                    return Err(Error::new(Code::BadParameter, message).help(
                        match nearest(&input.name, names) {
                            Some(near) => format!("did you mean {near:?}?"),
                            None => "check that they are those of this model".into(),
                        },
                    ));
                }
                open.push(input.name.clone());
                continue;
            };
            let is_it =
                |(dim, &n): (&Dim, &usize)| dim.known().is_none_or(|dim| usize::try_from(dim) == Ok(n));
            let shape = weight.shape();
            if shape.len() != input.ty.shape.len() || !input.ty.shape.iter().zip(shape).all(is_it) {
                let message =
                    format!("{:?} has shape {shape:?}, but must be {}", &*input.name, input.ty.shape);
                return Err(Error::new(Code::BadParameter, message).help("check where it comes from"));
            }
            let value = checkpoint.readable(&input.name)?.to_tensor()?.cast(input.ty.dtype);
            values.insert(input.name.clone(), Arc::new(value));
        }
        let initial = self.compiled().initial(&open.iter().map(|n| &**n).collect::<Vec<_>>(), 0)?;
        values.extend(open.into_iter().zip(initial.into_iter().map(Arc::new)));
        Ok(values)
    }
}

/// The array that a step describes.
fn assembled(step: &Step, checkpoint: &Checkpoint) -> Result<Tensor> {
    let part = |name: &String| {
        let weight = checkpoint.get(name).ok_or_else(|| Error::internal(format!("{name:?} is not there")))?;
        let tensor = weight.to_tensor()?;
        let tensor = if step.transposed { transposed(&tensor) } else { tensor };
        match if step.paired { checkpoint.pairs()? } else { None } {
            Some(head) => halves(&tensor, head),
            None => Ok(tensor),
        }
    };
    let mut parts = step.theirs.iter().map(part).collect::<Result<Vec<_>>>()?;
    if parts.len() == 1 {
        return Ok(parts.swap_remove(0));
    }
    let mut shape = parts.first().map_or(vec![], |p| p.shape().to_vec());
    if let Some(first) = shape.first_mut() {
        *first = parts.iter().map(|p| p.shape().first().copied().unwrap_or(0)).sum();
    }
    let dtype = parts.first().map(Tensor::dtype).ok_or_else(|| Error::internal("a step without a source"))?;
    let bytes: Vec<u8> = parts.iter().flat_map(|p| p.cast(dtype).to_bytes()).collect();
    Tensor::from_bytes(dtype, shape, &bytes)
}

fn transposed(matrix: &Tensor) -> Tensor {
    let &[rows, columns] = matrix.shape() else { return matrix.clone() };
    matrix.select(&[columns, rows], (0..rows * columns).map(|i| i % rows * columns + i / rows))
}

/// The rows of each head, which are pairs, as the first halves of all pairs and then the second.
fn halves(rows: &Tensor, head: usize) -> Result<Tensor> {
    let count = rows.shape().first().copied().unwrap_or(0);
    if count % head != 0 {
        let message = format!("{count} rows cannot be split into heads of {head}");
        return Err(Error::new(Code::BadFile, message).help("the file contradicts itself: fetch it again"));
    }
    let each = rows.len() / count.max(1);
    let row = |i: usize| i / head * head + i % head % (head / 2) * 2 + i % head / (head / 2);
    Ok(rows.select(rows.shape(), (0..rows.len()).map(|i| row(i / each) * each + i % each)))
}

/// Ignores what is a copy of something that is loaded: files hold tied arrays, which are one of ours, twice.
fn set_copies_aside(report: &mut Report, steps: &[Step], checkpoint: &Checkpoint) {
    let is_copy = |name: &String| {
        let Some(spare) = checkpoint.get(name) else { return false };
        let mut used = steps.iter().flat_map(|step| &step.theirs).filter_map(|name| checkpoint.get(name));
        used.any(|w| {
            w.shape() == spare.shape()
                && w.stored() == spare.stored()
                && w.bytes().is_some()
                && w.bytes() == spare.bytes()
        })
    };
    let (copies, rest) = std::mem::take(&mut report.unexpected).into_iter().partition(is_copy);
    report.unexpected = rest;
    report.ignored.extend::<Vec<String>>(copies);
}

fn misfit(report: &Report) -> Error {
    let shown = |names: Vec<&str>| {
        let more = if names.len() > 5 { format!(" and {} more", names.len() - 5) } else { String::new() };
        names[..names.len().min(5)].join(", ") + &more
    };
    let mut error = Error::new(Code::BadParameter, "the weights do not match the model");
    if !report.missing.is_empty() {
        let names = report.missing.iter().map(|(name, _)| &**name).collect();
        error = error.note(format!("missing: {}", shown(names)));
    }
    if !report.unexpected.is_empty() {
        error =
            error.note(format!("unexpected: {}", shown(report.unexpected.iter().map(|n| &**n).collect())));
    }
    if !report.mis_shaped.is_empty() {
        let shapes: Vec<_> = report
            .mis_shaped
            .iter()
            .map(|m| {
                format!("{} ({:?} in the model, {:?} in the weights)", m.step.ours, m.expected, m.actual)
            })
            .collect();
        error = error.note(format!("of another shape: {}", shown(shapes.iter().map(|s| &**s).collect())));
        return error.help("build the model with the sizes of the weights");
    }
    if report.renamed.is_empty() {
        return error.help("compare the arguments of the model; names that differ can be given: OURS=THEIRS");
    }
    let pairs: Vec<_> = report.renamed.iter().map(|(ours, theirs)| format!("{ours}={theirs}")).collect();
    error.help(format!("sizes agree in order; if the layers match in order, give names: {}", pairs.join(" ")))
}
