//! What a layout asks for: where each input of a graph lies on the mesh.

use mithril_ir::error::{Code, Error, Result, nearest};
use mithril_ir::graph::{Def, Graph, Role, TensorType, ValueId};

use super::experts::is_of_experts;
use super::mesh::{Layout, Spec, matches};
use super::rule::Placement;

/// For each input and axis of the mesh where the layout puts it.
///
/// # Errors
/// If the layout names an axis or an input that is not there, a size is not known or does not divide.
pub fn requested(graph: &Graph, layout: &Layout) -> Result<Vec<Vec<Placement>>> {
    check_names(graph, layout)?;
    let first_size = |&v: &ValueId| match graph.value(v).def {
        Def::Input(Role::Data) => graph.ty(v).and_then(|ty| ty.shape.known()?.first().copied()),
        _ => None,
    };
    let batches: Vec<usize> = graph.inputs.iter().filter_map(first_size).collect();
    let is_of_experts: Vec<bool> = if layout.experts.is_empty() {
        vec![false; graph.inputs.len()]
    } else {
        (0..graph.inputs.len()).map(|i| is_of_experts(graph, i)).collect()
    };
    if !layout.experts.is_empty() && !is_of_experts.contains(&true) {
        let message = "the experts are to be divided, and the model has none";
        return Err(Error::new(Code::BadArgument, message).help(
            "experts are parameters of three axes that products of matrices take one by one along the first; name others \
             by patterns: ml.Layout(mesh, {\"*.experts.*\": \"expert\"})",
        ));
    }
    let mut all = Vec::new();
    for (i, &v) in graph.inputs.iter().enumerate() {
        let value = graph.value(v);
        let (name, Some(ty), Def::Input(role)) =
            (value.name.as_deref().unwrap_or("input"), &value.ty, &value.def)
        else {
            return Err(Error::internal("an input without a type is partitioned"));
        };
        let Some(sizes) = ty.shape.known() else {
            let message = format!("the sizes of `{name}`, {ty}, are not known");
            return Err(Error::new(Code::UnknownShape, message)
                .help("give `shapes` when compiling: each device has to know how large its part is"));
        };
        let spec = match (layout.spec(name), role) {
            (Some(spec), _) => spec.clone(),
            (None, Role::Data) if sizes.len() > 1 => vec![layout.batch.clone(), layout.sequence.clone()],
            (None, Role::Data) if !sizes.is_empty() => vec![layout.batch.clone()],
            // The gradient of an output is divided as the data is, if it is one for each element of the batch.
            (None, Role::Cotangent) if sizes.first().is_some_and(|size| batches.contains(size)) => {
                vec![layout.batch.clone()]
            }
            (None, Role::Param) if is_of_experts[i] => of_experts(&sizes, layout)?,
            (None, Role::Param) => longest(&sizes, layout)?,
            _ => Vec::new(),
        };
        all.push(placements(name, ty, &sizes, &spec, layout)?);
    }
    Ok(all)
}

/// Refuses axes that the mesh does not have, and patterns that name nothing.
fn check_names(graph: &Graph, layout: &Layout) -> Result<()> {
    let specs = layout.patterns.iter().flat_map(|(_, spec)| spec.iter().flatten());
    let named = layout.batch.iter().chain(&layout.sequence).chain(&layout.parameters).chain(&layout.experts);
    for name in named.chain(specs) {
        layout.mesh.axis(name)?;
    }
    for (pattern, _) in &layout.patterns {
        let names = || graph.inputs.iter().filter_map(|&v| graph.value(v).name.as_deref());
        if !names().any(|name| matches(pattern, name)) {
            let error = Error::new(Code::BadArgument, format!("no input is called `{pattern}`"));
            return Err(match nearest(pattern, names()) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => error.help("`model.summary()` lists the names of all parameters"),
            });
        }
    }
    Ok(())
}

/// Where a tensor divided so lies on each axis of the mesh.
fn placements(
    name: &str,
    ty: &TensorType,
    sizes: &[usize],
    spec: &Spec,
    layout: &Layout,
) -> Result<Vec<Placement>> {
    let mesh = &layout.mesh;
    if spec.len() > sizes.len() {
        let message =
            format!("the layout of `{name}` has {} axes, the tensor {ty} has {}", spec.len(), sizes.len());
        return Err(Error::new(Code::BadArgument, message).help("give one entry for each axis of the tensor"));
    }
    let mut placements = vec![Placement::Replicate; mesh.axes().len()];
    for (k, axes) in spec.iter().enumerate() {
        let mut parts = 1;
        for axis in axes {
            let i = mesh.axis(axis)?;
            if placements[i] != Placement::Replicate {
                let message = format!("`{name}` is divided along `{axis}` twice");
                return Err(Error::new(Code::BadArgument, message)
                    .help("an axis of the mesh divides one axis of a tensor"));
            }
            parts *= mesh.axes()[i].1;
            placements[i] = Placement::Shard(k);
        }
        if !sizes[k].is_multiple_of(parts) {
            let message = format!(
                "axis {k} of `{name}`, {ty}, does not divide into {parts} parts ({})",
                axes.join(", ")
            );
            let next = (sizes[k] / parts + 1) * parts;
            return Err(Error::new(Code::BadArgument, message)
                .help(format!("make its size a multiple of {parts} (such as {next}), or leave it whole")));
        }
    }
    Ok(placements)
}

/// How a parameter of experts is divided that no pattern names.
fn of_experts(sizes: &[usize], layout: &Layout) -> Result<Spec> {
    let mut left = sizes.to_vec();
    for axis in &layout.experts {
        left[0] /= layout.mesh.axes()[layout.mesh.axis(axis)?].1;
    }
    let mut spec = longest(&left, layout)?;
    if spec.is_empty() {
        spec.push(Vec::new());
    }
    spec[0].splice(0..0, layout.experts.iter().cloned());
    Ok(spec)
}

/// How a parameter is divided that no pattern names.
fn longest(sizes: &[usize], layout: &Layout) -> Result<Spec> {
    let mut parts = 1;
    for axis in &layout.parameters {
        parts *= layout.mesh.axes()[layout.mesh.axis(axis)?].1;
    }
    if layout.parameters.is_empty() || sizes.len() < 2 {
        return Ok(Vec::new());
    }
    // Of equal axes the first.
    let fitting = (0..sizes.len()).rev().filter(|&k| sizes[k] > 0 && sizes[k].is_multiple_of(parts));
    Ok(fitting.max_by_key(|&k| sizes[k]).map_or_else(Vec::new, |k| {
        let mut spec = vec![Vec::new(); k];
        spec.push(layout.parameters.clone());
        spec
    }))
}
