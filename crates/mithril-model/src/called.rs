//! Calls of ops as users of other libraries write them, brought into our order.

use mithril_ir::op::OpDef;
use mithril_ir::ops::{self, signatures};
use mithril_ir::signature::{self, ArgumentKind, ForeignKeyword, Parameter, Slot};
use mithril_ir::{Code, Error, Lit, Result};

use crate::connection::Arg;
use crate::key::{Declared, Size};
use crate::model::Model;

type Named<'a> = Vec<(&'a str, Arg)>;

/// Arguments by position and by name, as the op's ports have them.
pub(crate) fn in_our_order<'a>(
    op: &'static OpDef,
    name: &str,
    args: Vec<Arg>,
    named: Named<'a>,
) -> Result<(Vec<Arg>, Named<'a>)> {
    let keywords: Vec<&str> = named.iter().map(|(keyword, _)| *keyword).collect();
    let kind_of = |port: &str| {
        let by_name = named.iter().find(|(keyword, _)| signatures::port(op, keyword) == op.port(port));
        by_name.map(|(_, arg)| arg).or_else(|| args.get(op.port(port)?)).map(kind)
    };
    ForeignKeyword::check(signatures::FOREIGN_KEYWORDS, name, &keywords, &kind_of)?;
    let (mut known, mut kernel): (Named<'a>, Option<Arg>) = (Vec::with_capacity(named.len()), None);
    for (word, arg) in named {
        match signatures::port(op, word) {
            Some(i) => known.push((op.ports[i].name, arg)),
            None if word == "kernel_size" && op.port("weight").is_some() => kernel = Some(arg),
            // The error about an unknown argument names what there is.
            None => known.push((word, arg)),
        }
    }
    let (mut args, passed) = (args, &mut known);
    if let Some(signature) = signatures::signature(name)
        && args.len() > 1
    {
        let ours = Parameter::of_op(op);
        let kinds: Vec<ArgumentKind> = args.iter().map(kind).collect();
        let words: Vec<&str> = passed.iter().map(|(n, _)| *n).collect();
        let text = |i: usize| args.get(i).map(written).unwrap_or_default();
        if let Some(slots) = signature::resolve(signature, &ours, &kinds, &words, &text)? {
            // A tensor may stand behind what is left out: all of them go by name, the first apart.
            let mut rest = args.drain(..).zip(slots);
            let mut first = Vec::new();
            for (arg, slot) in &mut rest {
                match slot {
                    Slot::Parameter(i) if i == first.len() => first.push(arg),
                    Slot::Parameter(i) => passed.push((ours[i].name, arg)),
                    Slot::Kernel => kernel = Some(arg),
                    Slot::Ignored => {}
                }
            }
            drop(rest);
            args = first;
        }
    }
    // Texts at literal ports are values, not names of connections.
    for (i, arg) in args.iter_mut().enumerate() {
        text_at(op, i, arg);
    }
    for (name, arg) in &mut *passed {
        if let Some(i) = op.port(name) {
            text_at(op, i, arg);
        }
    }
    if let Some(kernel) = kernel {
        let at = op.port("weight").unwrap_or_default();
        let weight = match args.get_mut(at) {
            Some(arg) => Some(arg),
            None => passed.iter_mut().find(|(n, _)| *n == "weight").map(|(_, arg)| arg),
        };
        if let Some(weight) = weight {
            *weight = with_kernel(op, weight, &kernel)?;
        }
    }
    Ok((args, known))
}

fn text_at(op: &OpDef, i: usize, arg: &mut Arg) {
    if let Arg::Name(text) = arg
        && !op.takes_tensor(i)
    {
        *arg = Arg::Lit(Lit::Str(text.clone()));
    }
}

/// The weight, declared to have a kernel of these sizes.
fn with_kernel(op: &OpDef, weight: &Arg, kernel: &Arg) -> Result<Arg> {
    let axes = op.name.chars().find_map(|c| c.to_digit(10)).unwrap_or(2) as usize;
    let sizes: Option<Vec<i64>> = match kernel.to_lit() {
        Some(Lit::Int(n)) => n.known().map(|n| vec![n; axes]),
        Some(Lit::Tuple(items)) if items.len() == axes => {
            items.iter().map(|i| if let Lit::Int(n) = i { n.known() } else { None }).collect()
        }
        _ => None,
    };
    let Some(sizes) = sizes else {
        let message = format!("`kernel_size` of {} is {}", op.name, written(kernel));
        return Err(Error::new(Code::BadArgument, message).help(format!(
            "it must be an integer or {axes} of them, or be left out: the weight determines it"
        )));
    };
    let shape = [Size::Unknown, Size::Unknown].into_iter().chain(sizes.into_iter().map(Size::from)).collect();
    let Arg::Connection(connection) = weight else { return Ok(weight.clone()) };
    // A reshape to the shape it has, which every pass removes.
    let Some(reshape) = ops::find("reshape") else { return Ok(weight.clone()) };
    let same =
        Model::leaf(reshape, 0).declared("input", Declared { shape: Some(shape), ..Declared::default() })?;
    same.call([weight.clone(), connection.shape()?.into()]).map(Arg::Connection)
}

fn kind(arg: &Arg) -> ArgumentKind {
    match arg {
        Arg::Connection(c) if c.is_literal() => match arg.to_lit() {
            Some(lit) => ArgumentKind::of(&lit),
            None => ArgumentKind::Literal,
        },
        Arg::Connection(_) | Arg::Key(_) => ArgumentKind::Tensor,
        Arg::Name(_) => ArgumentKind::Text,
        Arg::Slice(_) => ArgumentKind::Other,
        Arg::Lit(_) | Arg::List(_) => match arg.to_lit() {
            Some(lit) => ArgumentKind::of(&lit),
            None => ArgumentKind::Literal,
        },
    }
}

/// An argument in a message.
fn written(arg: &Arg) -> String {
    match (arg, arg.to_lit()) {
        (Arg::Connection(_) | Arg::Key(_), None) => "x".to_owned(),
        (Arg::Name(text), _) => format!("{text:?}"),
        (_, Some(lit)) => lit.to_string(),
        _ => "…".to_owned(),
    }
}
