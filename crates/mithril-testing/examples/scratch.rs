use std::fmt::Write as _;
use std::sync::Arc;
use mithril::codegen::python::{self, Argument, Function, NUMPY, TORCH, JAX, MLX, Results, PythonTarget};
use mithril::compile::passes::{self, differentiate::{Request, differentiate}};
use mithril::ir::graph::Role;
use mithril::ir::{DType, Graph, Tensor, interp, ops};
use mithril_testing::{case, run};

fn py(t: &Tensor) -> String {
    let v: Vec<String> = (0..t.len()).map(|i| match t.get(i) {
        mithril::ir::Scalar::Bool(b) => if b {"True".into()} else {"False".into()},
        mithril::ir::Scalar::Int(n) => n.to_string(),
        mithril::ir::Scalar::Float(x) => format!("float('{x:?}')"),
    }).collect();
    let d = match t.dtype() { DType::BF16 => "bfloat16".to_string(), d => format!("np.{}", if d==DType::Bool {"bool_"} else {d.name()}) };
    format!("np.array([{}], dtype={d}).reshape({:?})", v.join(", "), t.shape()).replace("[]", "[]")
}
fn emit(target: &PythonTarget, out: &mut String, label: &str, graph: &Graph, inputs: &[Arc<Tensor>], float: DType) -> Result<(), String> {
    let can = |g: &Graph, n| python::can_spell(target, g, n);
    let legal = passes::legalize::legalize(graph, float, &can).map_err(|e| e.to_string())?;
    let wanted = interp::run(graph, inputs).map_err(|e| e.to_string())?;
    let args = [Argument{name:"data", role: Role::Data}, Argument{name:"cot", role: Role::Cotangent}];
    let f = Function { name: "f", graph: &legal, arguments: &args, results: Results::Tuple };
    let src = python::emit(target, &[f]).map_err(|e| e.to_string())?;
    let mut data = Vec::new();
    for (v, t) in graph.inputs.iter().zip(inputs) {
        data.push(format!("{:?}: {}", &**graph.value(*v).name.as_ref().unwrap(), py(t)));
    }
    let consts: Vec<String> = src.constants.iter().map(|(n, t)| format!("{n:?}: {}", py(t))).collect();
    let want: Vec<String> = wanted.iter().map(|t| py(t)).collect();
    writeln!(out, "check({label:?}, {:?}, {{{}}}, {{{}}}, [{}])", src.text, data.join(", "), consts.join(", "), want.join(", ")).unwrap();
    Ok(())
}
fn main() {
    let families: Vec<String> = std::env::args().skip(2).collect(); let target = match std::env::args().nth(1).unwrap().as_str() { "torch" => &TORCH, "jax" => &JAX, "mlx" => &MLX, _ => &NUMPY };
    let mut out = String::new();
    for (family, rows) in ops::FAMILIES {
        if !families.is_empty() && !families.iter().any(|f| f == family) { continue; }
        for op in *rows { for float in [DType::F32, DType::F64, DType::F16] {
            for c in case::cases(op, float).unwrap() {
                let label = format!("{} {} {float}", op.name, c.text);
                let Ok((graph, inputs)) = run::graph_of(&c, float) else { eprintln!("('CANNOT BUILD', {label:?})"); continue };
                if let Err(e) = emit(target, &mut out, &label, &graph, &inputs, float) { eprintln!("('FAIL emit', {label:?}, {e:?})"); }
                let name = |v: mithril::ir::ValueId| graph.value(v).name.clone().unwrap();
                let is = |v: &mithril::ir::ValueId| graph.ty(*v).is_some_and(|t| t.dtype.is_float());
                let wrt: Vec<_> = graph.inputs.iter().filter(|v| is(v)).map(|&v| name(v)).collect();
                let outs: Vec<_> = graph.outputs.iter().filter(|(_, v)| is(v)).map(|(n, _)| n.clone()).collect();
                if wrt.is_empty() || outs.is_empty() { continue; }
                let Ok(back) = differentiate(&graph, &Request{outputs: outs.clone(), inputs: wrt}, float) else { eprintln!("('NO GRAD', {label:?})"); continue };
                let mut given = inputs.clone();
                for v in &back.inputs[inputs.len()..] {
                    let ty = back.ty(*v).unwrap();
                    let shape = ty.shape.known().unwrap();
                    given.push(Arc::new(Tensor::build(ty.dtype, &shape, |i| mithril::ir::Scalar::Float((i as f64 * 0.37).sin()))));
                }
                if let Err(e) = emit(target, &mut out, &format!("grad {label}"), &back, &given, float) { eprintln!("('FAIL emit grad', {label:?}, {e:?})"); }
            }
        } }
    }
    print!("{out}");
}
