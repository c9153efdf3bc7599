//! Layers: models that are ready to add, and the registry from which the classes of other languages are made.
//!
//! A layer is a definition ([`LayerDef`]): name, documentation, arguments, and the function that builds the model. Every
//! op whose definition names a layer is one too; its arguments are the literal arguments of the op.

mod args;
mod attention;
mod basic;
mod conv;
pub(crate) mod expr;
mod norm;
mod recurrent;
pub mod signatures;

use std::sync::LazyLock;

use mithril_ir::op::{Attr, DefaultLit, OpDef, Port, PortKind};
use mithril_ir::signature::{self, ArgumentKind, ForeignKeyword, Parameter};
use mithril_ir::{Code, Error, Lit, Result, ops};
use rustc_hash::FxHashMap;

pub use args::LayerArgs;
pub use basic::linear;

use crate::model::{Model, unknown};

/// An argument of a layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerArg {
    /// Name.
    pub name: &'static str,
    /// What it takes.
    pub kind: Attr,
    /// What it is when not given.
    pub default: DefaultLit,
    /// What it means.
    pub doc: &'static str,
}

/// An argument of a layer.
pub(crate) const fn arg(name: &'static str, kind: Attr, default: DefaultLit, doc: &'static str) -> LayerArg {
    LayerArg { name, kind, default, doc }
}

/// A layer that is built of several things, or with parameters.
#[derive(Debug)]
pub struct LayerDef {
    /// Name in CamelCase.
    pub name: &'static str,
    /// Documentation.
    pub doc: &'static str,
    /// Arguments in order.
    pub args: &'static [LayerArg],
    /// Makes the model.
    pub build: fn(&LayerArgs<'_>) -> Result<Model>,
    /// Other names of the layer.
    pub aliases: &'static [&'static str],
    /// Other names of arguments, and what they stand for.
    pub arg_aliases: &'static [(&'static str, &'static str)],
}

/// A layer, from a definition or from an op.
#[derive(Debug)]
pub struct Layer {
    /// Name in CamelCase.
    pub name: &'static str,
    /// Documentation.
    pub doc: &'static str,
    /// Arguments in order.
    pub args: Vec<LayerArg>,
    /// Other names of the layer.
    pub aliases: Vec<String>,
    /// Other names of arguments, and what they stand for.
    pub arg_aliases: &'static [(&'static str, &'static str)],
    source: Source,
}

#[derive(Debug)]
enum Source {
    Def(fn(&LayerArgs<'_>) -> Result<Model>),
    Op(&'static OpDef),
}

/// Where a layer's default differs from the one of its op: layers keep the batch.
static OVERRIDES: &[(&str, &str, DefaultLit)] = &[("Flatten", "start_axis", DefaultLit::Int(1))];

/// Layers of ops whose definitions name none.
static EXTRA: &[(&str, &str)] = &[
    ("Flatten", "flatten"),
    ("MaxPool1d", "max_pool1d"),
    ("MaxPool2d", "max_pool2d"),
    ("MaxPool3d", "max_pool3d"),
    ("AvgPool1d", "avg_pool1d"),
    ("AvgPool2d", "avg_pool2d"),
    ("AvgPool3d", "avg_pool3d"),
    ("AdaptiveAvgPool1d", "adaptive_avg_pool1d"),
    ("AdaptiveAvgPool2d", "adaptive_avg_pool2d"),
    ("AdaptiveAvgPool3d", "adaptive_avg_pool3d"),
    ("AdaptiveMaxPool1d", "adaptive_max_pool1d"),
    ("AdaptiveMaxPool2d", "adaptive_max_pool2d"),
    ("AdaptiveMaxPool3d", "adaptive_max_pool3d"),
    ("Upsample", "interpolate"),
    ("PixelShuffle", "pixel_shuffle"),
    ("PixelUnshuffle", "pixel_unshuffle"),
    ("Normalize", "normalize"),
    ("ScaledDotProductAttention", "scaled_dot_product_attention"),
    ("RotaryEmbedding", "rope"),
];

/// Other names, after the rules `Conv2D` = `Conv2d` and `ReLU` = `Relu`.
static ALIASES: &[(&str, &[&str])] = &[
    ("Relu", &["ReLU"]),
    ("Relu6", &["ReLU6"]),
    ("LeakyRelu", &["LeakyReLU"]),
    ("Gelu", &["GELU"]),
    ("Silu", &["SiLU", "Swish"]),
    ("Elu", &["ELU"]),
    ("Selu", &["SELU"]),
    ("Celu", &["CELU"]),
    ("FeatureDropout", &["Dropout1d", "Dropout2d", "Dropout3d"]),
    ("MatrixMultiply", &["MatMul", "Matmul"]),
    ("Power", &["Pow"]),
];

static ARG_ALIASES: &[(&str, &str)] = &[
    ("dim", "axis"),
    ("keepdims", "keepdim"),
    ("start_dim", "start_axis"),
    ("end_dim", "end_axis"),
    ("strides", "stride"),
    ("rate", "p"),
    ("negative_slope", "slope"),
];

static LAYERS: LazyLock<Vec<Layer>> = LazyLock::new(|| {
    let defs = [basic::LAYERS, conv::LAYERS, norm::LAYERS, recurrent::LAYERS, attention::LAYERS];
    let mut layers: Vec<Layer> = defs.into_iter().flatten().map(Layer::of_def).collect();
    let mut add = |name: &'static str, op: &'static OpDef| {
        if !layers.iter().any(|l: &Layer| l.name == name) {
            layers.push(of_op(name, op));
        }
    };
    for op in ops::all().filter(|op| !op.layer.is_empty()) {
        add(op.layer, op);
    }
    for (name, op) in EXTRA {
        if let Some(op) = ops::find(op) {
            add(name, op);
        }
    }
    layers
});

static BY_NAME: LazyLock<FxHashMap<String, usize>> = LazyLock::new(|| {
    let mut map = FxHashMap::default();
    for (i, layer) in LAYERS.iter().enumerate() {
        map.entry(layer.name.to_owned()).or_insert(i);
        for alias in &layer.aliases {
            map.entry(alias.clone()).or_insert(i);
        }
    }
    map
});

/// Other names; dimensions are written `2d` and `2D`.
fn aliases(name: &str, others: &[&str]) -> Vec<String> {
    let stem = name.strip_suffix('d').filter(|s| s.ends_with(|c: char| c.is_ascii_digit()));
    stem.map(|s| format!("{s}D")).into_iter().chain(others.iter().map(|&a| a.to_owned())).collect()
}

fn of_op(name: &'static str, op: &'static OpDef) -> Layer {
    let overridden = |arg: &str| OVERRIDES.iter().find(|(l, a, _)| *l == name && *a == arg).map(|(.., d)| *d);
    let mut args: Vec<LayerArg> = op
        .ports
        .iter()
        .filter_map(|port| match port.kind {
            PortKind::Attr(kind) => Some(LayerArg {
                name: port.name,
                kind,
                default: overridden(port.name).unwrap_or(port.default),
                doc: "",
            }),
            _ => None,
        })
        .collect();
    // Numbers that may also be tensors, such as a slope: an argument of the layer, or connected.
    let is_number = |port: &&Port| {
        matches!(port.kind, PortKind::Tensor(_))
            && matches!(port.default, DefaultLit::Float(_) | DefaultLit::Int(_))
    };
    args.extend(
        op.ports.iter().filter(is_number).map(|port| arg(port.name, Attr::OptFloat, DefaultLit::None, "")),
    );
    if op.is_variadic() {
        args.push(arg("n", Attr::Int, DefaultLit::Int(2), "Number of inputs."));
    }
    let others = ALIASES.iter().find(|(l, _)| *l == name).map_or(&[][..], |(_, a)| a);
    Layer {
        name,
        doc: op.doc,
        args,
        aliases: aliases(name, others),
        arg_aliases: ARG_ALIASES,
        source: Source::Op(op),
    }
}

/// All layers in the order of the documentation.
pub fn all() -> &'static [Layer] {
    &LAYERS
}

/// The layer of that name or alias.
pub fn find(name: &str) -> Option<&'static Layer> {
    BY_NAME.get(name).map(|&i| &LAYERS[i])
}

/// Makes a layer by name; arguments by place, then by name.
///
/// ```
/// use mithril_model::layers;
/// let linear = layers::build("Linear", vec![64.into()], vec![("bias", false.into())])?;
/// assert_eq!(linear.to_string(), "Linear(inputs=[input], outputs=[output])");
/// # Ok::<(), mithril_ir::Error>(())
/// ```
pub fn build(name: &str, args: Vec<Lit>, named: Vec<(&str, Lit)>) -> Result<Model> {
    let layer = find(name).ok_or_else(|| unknown("layer", name, "Mithril", all().iter().map(|l| l.name)))?;
    layer.build(args, named)
}

impl Layer {
    /// The layer of a definition.
    pub(crate) fn of_def(def: &'static LayerDef) -> Self {
        Self {
            name: def.name,
            doc: def.doc,
            args: def.args.to_vec(),
            aliases: aliases(def.name, def.aliases),
            arg_aliases: def.arg_aliases,
            source: Source::Def(def.build),
        }
    }
    /// Makes the model; arguments by place, then by name. Every alias of an argument is accepted.
    pub fn build(&self, args: Vec<Lit>, named: Vec<(&str, Lit)>) -> Result<Model> {
        let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
        self.check_order(&args, &names)?;
        self.check_keywords(&args, &named)?;
        let values = self.values(args, named)?;
        match self.source {
            Source::Def(build) => {
                let values = values
                    .into_iter()
                    .zip(&self.args)
                    .map(|(value, arg)| value.ok_or_else(|| self.missing(arg.name)))
                    .collect::<Result<Vec<Lit>>>()?;
                let model = build(&LayerArgs { layer: self, values: &values })?;
                let names = self.args.iter().map(|arg| arg.name);
                Ok(model.of_class(self.name).made_with(names.zip(values).collect()))
            }
            Source::Op(op) => self.build_op(op, values),
        }
    }
    /// Refuses arguments by position that mean something else under this name in PyTorch.
    ///
    /// # Errors
    /// With the ways to write it by keyword.
    pub fn check_order(&self, args: &[Lit], named: &[&str]) -> Result<()> {
        let Some(signature) = signatures::signature(self.name) else { return Ok(()) };
        let ours = self.args.iter().map(|arg| Parameter {
            name: arg.name,
            kind: PortKind::Attr(arg.kind),
            required: arg.default == DefaultLit::Required,
        });
        let kinds: Vec<ArgumentKind> = args.iter().map(ArgumentKind::of).collect();
        let named: Vec<&str> = named.iter().map(|name| self.canonical(name)).collect();
        let text = |i: usize| args.get(i).map(Lit::to_string).unwrap_or_default();
        signature::resolve(signature, &ours.collect::<Vec<_>>(), &kinds, &named, &text).map(|_| ())
    }
    /// Checks that no keyword means something else in another library.
    ///
    /// # Errors
    /// With other ways to write the call.
    pub fn check_keywords(&self, args: &[Lit], named: &[(&str, Lit)]) -> Result<()> {
        let (name, entries) = match self.source {
            Source::Def(_) => (self.name, signatures::FOREIGN_KEYWORDS),
            Source::Op(op) => (op.name, ops::signatures::FOREIGN_KEYWORDS),
        };
        let keywords: Vec<&str> = named.iter().map(|(keyword, _)| *keyword).collect();
        let kind_of = |arg: &str| {
            let by_name =
                named.iter().find(|(keyword, _)| self.canonical(keyword) == arg).map(|(_, lit)| lit);
            let i = self.args.iter().position(|a| a.name == arg)?;
            // Python passes defaults along.
            let is_default = |lit: &&Lit| self.args[i].default.lit().is_some_and(|d| d == **lit);
            by_name.or_else(|| args.get(i)).filter(|lit| !is_default(lit)).map(ArgumentKind::of)
        };
        ForeignKeyword::check(entries, name, &keywords, &kind_of)
    }
    fn canonical<'a>(&self, name: &'a str) -> &'a str {
        self.arg_aliases.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, own)| own)
    }
    fn build_op(&self, op: &'static OpDef, values: Vec<Option<Lit>>) -> Result<Model> {
        let mut n = 0;
        if op.is_variadic() {
            n = match values.last() {
                Some(Some(Lit::Int(d))) => d.known().filter(|n| (0..=10_000).contains(n)).unwrap_or(-1),
                _ => 2,
            };
            if n < 0 {
                return Err(Error::new(
                    Code::BadArgument,
                    format!("`n` of {} is not a number of inputs", self.name),
                )
                .help("`n` must be between 0 and 10000"));
            }
        }
        let mut model = Model::leaf(op, n as usize).of_class(self.name);
        for (value, arg) in values.into_iter().zip(&self.args) {
            // What is missing stays a port, which may be connected.
            let is_open =
                |value: &Lit| op.port(arg.name).is_none_or(|i| value.is_none() && op.takes_tensor(i));
            if let Some(value) = value.filter(|value| !is_open(value)) {
                model = model.setting(arg.name, value)?;
            }
        }
        model.count_outputs();
        Ok(model)
    }
    /// One value per argument; `None` where a required one of an op is left open.
    fn values(&self, args: Vec<Lit>, named: Vec<(&str, Lit)>) -> Result<Vec<Option<Lit>>> {
        if args.len() > self.args.len() {
            let message =
                format!("{} takes {} arguments, but {} are given", self.name, self.args.len(), args.len());
            return Err(Error::new(Code::BadArgument, message).help(self.signature()));
        }
        let mut values: Vec<Option<(Lit, String)>> = vec![None; self.args.len()];
        for ((i, value), arg) in args.into_iter().enumerate().zip(&self.args) {
            values[i] = Some((value, arg.name.to_owned()));
        }
        for (name, value) in named {
            let canonical = self.canonical(name);
            let position = self.args.iter().position(|a| a.name == name || a.name == canonical);
            let Some(i) = position else {
                return Err(unknown("argument", name, self.name, self.args.iter().map(|a| a.name))
                    .note(self.signature()));
            };
            // Python passes defaults along: only what was written by hand can contradict.
            let is_default = |lit: &Lit| self.args[i].default.lit().is_some_and(|d| d == *lit);
            if let Some((old, as_name)) = &values[i]
                && *old != value
                && !is_default(old)
            {
                let message = format!("{} is given `{as_name}` = {old} and `{name}` = {value}", self.name);
                return Err(
                    Error::new(Code::ConflictingOptions, message).help("both are one argument; give it once")
                );
            }
            values[i] = Some((value, name.to_owned()));
        }
        values
            .into_iter()
            .zip(&self.args)
            .map(|(value, arg)| match value {
                Some((value, _)) => self.check(arg, value).map(Some),
                None => Ok(arg.default.lit()),
            })
            .collect()
    }
    fn check(&self, arg: &LayerArg, value: Lit) -> Result<Lit> {
        let value = arg.kind.read(value)?;
        if mithril_ir::build::attr_fits(arg.kind, &value) {
            return Ok(value);
        }
        let expected = match arg.kind {
            Attr::Choice(all) => format!("one of {}", all.join(", ")),
            kind => kind.text().to_owned(),
        };
        Err(Error::new(Code::BadArgument, format!("`{}` of {} is {value}", arg.name, self.name))
            .help(format!("it must be {expected}")))
    }
    #[cold]
    fn missing(&self, name: &str) -> Error {
        Error::new(Code::BadArgument, format!("`{name}` of {} is missing", self.name)).help(self.signature())
    }
    /// `Linear(dimension, bias=true)`
    pub fn signature(&self) -> String {
        let args: Vec<String> = self
            .args
            .iter()
            .map(|a| match a.default.lit() {
                Some(lit) => format!("{}={lit}", a.name),
                None => a.name.to_owned(),
            })
            .collect();
        format!("{}({})", self.name, args.join(", "))
    }
}
