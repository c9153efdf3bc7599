//! Parser of programs of loops, as `text.rs` prints them. Any text is a program or an error with its line.

use std::collections::BTreeMap;
use std::sync::Arc;

use mithril_ir::error::Result;
use mithril_ir::text::Lexer;
use mithril_ir::{DType, Scalar, Tensor};

use crate::c::ir::expr::{
    Argument, Atom, Binary, BufferId, Call, Expr, Index, ReduceOp, Var, Within, arithmetic,
};
use crate::c::ir::layout::{Blocks, Bytes};
use crate::c::ir::program::{
    BatchTiling, Integers, LoopBuffer, LoopMemory, LoopPlace, LoopProgram, LoopStep, LoopWork, Nest, Place,
};
use crate::ids::{Id, InputId, OutputId};

impl LoopProgram {
    /// Reads a program. Constants whose elements are elided are taken from `constants`, in the order of the text.
    pub fn parse(text: &str, constants: &[Arc<Tensor>]) -> Result<Self> {
        let mut parser = Parser {
            lexer: Lexer::new(text),
            program: Self::default(),
            constants: constants.iter(),
            sizes: BTreeMap::new(),
        };
        parser.program()?;
        Ok(parser.program)
    }
    /// The constants whose elements the text of the program elides.
    pub fn elided_constants(&self) -> Vec<Arc<Tensor>> {
        let constants = self.buffers.iter().filter_map(|buffer| match &buffer.place {
            Place::Constant(tensor) => Some(tensor),
            _ => None,
        });
        constants.filter(|tensor| tensor.len() > super::text::LARGEST_CONSTANT).cloned().collect()
    }
}

struct Parser<'t> {
    lexer: Lexer<'t>,
    program: LoopProgram,
    constants: std::slice::Iter<'t, Arc<Tensor>>,
    /// Sizes of the variables of the step so far.
    sizes: BTreeMap<u32, i64>,
}

impl Parser<'_> {
    fn program(&mut self) -> Result<()> {
        while self.buffer()? {}
        while self.lexer.eat_word("integers") {
            let buffer = self.known_buffer()?;
            self.lexer.expect(":")?;
            let integers = if self.lexer.eat_word("weights") {
                Integers::Weights
            } else {
                let low = self.float()? as f32;
                self.lexer.expect("to")?;
                Integers::Range([low, self.float()? as f32])
            };
            self.program.integers.insert(buffer, integers);
        }
        while self.lexer.eat_word("update") {
            let old = self.known_buffer()?;
            self.lexer.expect(":")?;
            let new = self.known_buffer()?;
            self.program.updates.push((old, new));
        }
        if self.lexer.eat_word("tiles") {
            self.lexer.expect(":")?;
            let tiles = self.count()?;
            self.lexer.expect("of")?;
            self.lexer.expect("(")?;
            let inputs = self.lexer.items(")", |lexer| {
                lexer.expect("input")?;
                id(lexer)
            })?;
            self.program.tiling = Some(BatchTiling { tiles, inputs: inputs.into_iter().collect() });
        }
        self.lexer.expect("variables")?;
        self.lexer.expect(":")?;
        self.program.next_var = self.var_id()?;
        if self.lexer.eat("once:") {
            while !self.lexer.eat("at every call:") {
                let step = self.step()?;
                self.program.prepacking.push(step);
            }
        }
        while !self.lexer.is_at_end() {
            let step = self.step()?;
            self.program.steps.push(step);
        }
        Ok(())
    }

    /// Reads the line of the next buffer, if it comes next.
    fn buffer(&mut self) -> Result<bool> {
        let number = self.program.buffers.len();
        if !self.lexer.eat(&format!("x{number}:")) {
            return Ok(false);
        }
        let ty = self.lexer.tensor_type()?;
        let Some(shape) = ty.shape.known() else {
            return Err(self.lexer.error("expected sizes that are numbers"));
        };
        let constant = if self.lexer.eat("{...}") {
            let constant = self.constants.next().cloned();
            let is_meant = |t: &Arc<Tensor>| t.dtype() == ty.dtype && t.shape() == shape;
            Some(constant.filter(is_meant).ok_or_else(|| self.lexer.error("there is no such constant"))?)
        } else if self.lexer.peek() == Some('{') {
            Some(Arc::new(self.lexer.elements(ty.dtype, &shape)?))
        } else {
            None
        };
        let place = self.place(constant)?;
        let is_param = self.lexer.eat_word("fixed");
        let blocks = if self.lexer.eat("in blocks of") { Some(self.blocks()?) } else { None };
        let shape: Vec<i64> = shape.into_iter().map(|n| n as i64).collect();
        if blocks.is_some() && !matches!(shape.len(), 4 | 5) {
            return Err(self.lexer.error("only tensors of 4 or 5 axes are stored in blocks"));
        }
        let name = self.lexer.string()?;
        self.program.buffers.push(LoopBuffer { name, dtype: ty.dtype, shape, place, is_param, blocks });
        Ok(true)
    }

    fn place(&mut self, constant: Option<Arc<Tensor>>) -> Result<LoopPlace> {
        if let Some(tensor) = constant {
            self.lexer.expect("constant")?;
            return Ok(Place::Constant(tensor));
        }
        match self.lexer.word() {
            "temporary" => Ok(Place::Memory(LoopMemory::Temporary)),
            "prepacked" => Ok(Place::Memory(LoopMemory::Prepacked)),
            "output" => Ok(Place::Output(id(&mut self.lexer)?)),
            "input" => {
                let input: InputId = id(&mut self.lexer)?;
                if !self.lexer.eat(",") {
                    return Ok(Place::Input(input));
                }
                self.lexer.expect("output")?;
                let output: OutputId = id(&mut self.lexer)?;
                Ok(Place::State { input, output })
            }
            _ => Err(self.lexer.error("expected where the buffer lies")),
        }
    }

    fn blocks(&mut self) -> Result<Blocks> {
        let mut blocks = Blocks::of(self.size()?.max(1));
        self.lexer.expect(", halo")?;
        for side in blocks.halo.as_flattened_mut() {
            *side = self.size()?;
        }
        if self.lexer.eat(", frames") {
            blocks.frame_halo = [self.size()?, self.size()?];
        }
        if self.lexer.eat(", bytes for") {
            let range = [self.float()? as f32, self.float()? as f32];
            self.lexer.expect(", NaN flags")?;
            blocks.bytes = Some(Bytes { range, nan_flags: self.size()? });
        }
        Ok(blocks)
    }

    fn step(&mut self) -> Result<LoopStep> {
        self.sizes.clear();
        let work = if let Some(to) = self.element()? {
            self.lexer.expect("[")?;
            let vars = self.vars()?;
            self.lexer.expect("=")?;
            LoopWork::Nest(Nest { to, vars, value: self.expr()? })
        } else {
            LoopWork::Call(self.call()?)
        };
        self.lexer.expect("in")?;
        let origin = self.lexer.string()?;
        self.lexer.expect("as")?;
        let name = self.lexer.string()?;
        Ok(LoopStep { name, origin, work })
    }

    fn call(&mut self) -> Result<Call> {
        let function = self.lexer.word().to_owned();
        if function.is_empty() {
            return Err(self.lexer.error("expected a step"));
        }
        self.lexer.expect("(")?;
        let args = self.arguments(Self::argument)?;
        let scratch = if self.lexer.eat_word("scratch") { self.count()? } else { 0 };
        Ok(Call { function, args, scratch })
    }

    fn argument(&mut self) -> Result<Argument> {
        if self.lexer.eat_word("out") {
            return self.known_buffer().map(Argument::Out);
        }
        if self.lexer.eat_word("mesh") {
            return Ok(Argument::Mesh(self.lexer.string()?.into()));
        }
        if self.lexer.peek() == Some('M') {
            return Ok(Argument::Name(self.lexer.word().into()));
        }
        if self.lexer.eat("[") {
            return self.lexer.items("]", Lexer::integer).map(Argument::Ints);
        }
        if self.lexer.peek() == Some('x') {
            return self.known_buffer().map(Argument::In);
        }
        match self.lexer.float() {
            Some(x) => Ok(Argument::Float(x)),
            None => self.lexer.integer().map(Argument::Int),
        }
    }

    fn expr(&mut self) -> Result<Expr> {
        self.lexer.enter()?;
        let e = self.open_expr()?;
        self.lexer.leave();
        Ok(e)
    }

    fn open_expr(&mut self) -> Result<Expr> {
        if self.lexer.peek() == Some('(') {
            return self.brackets();
        }
        if let Some(from) = self.element()? {
            let dtype = self.dtype_suffix()?;
            let stored = dtype.unwrap_or(self.program.buffers[from].dtype);
            self.lexer.expect("[")?;
            return Ok(Expr::Load { from, at: self.indices("]")?, stored });
        }
        if self.lexer.eat("`") {
            let text = self.lexer.take_while(|c| c != '`').to_owned();
            self.lexer.expect("`")?;
            let dtype = self.dtype_suffix()?;
            self.lexer.expect("(")?;
            let args = self.arguments(Self::expr)?;
            let dtype = dtype.unwrap_or_else(|| args.first().map_or(DType::F32, Expr::dtype));
            return Ok(Expr::Apply { text: text.into(), args, dtype: arithmetic(dtype) });
        }
        if let Some(value) = self.scalar()? {
            let usual = match value {
                Scalar::Float(_) => DType::F32,
                Scalar::Int(_) => DType::I64,
                Scalar::Bool(_) => DType::Bool,
            };
            return Ok(Expr::Number(value, self.dtype_suffix()?.unwrap_or(usual)));
        }
        self.function()
    }

    /// Functions of values: casts, extremes, reductions.
    fn function(&mut self) -> Result<Expr> {
        let word = self.lexer.word();
        if let Some(op) = REDUCE_OPS.iter().find(|(name, _)| *name == word).map(|(_, op)| *op)
            && self.lexer.eat("[")
        {
            let vars = self.vars()?;
            self.lexer.expect("(")?;
            let body = Box::new(self.expr()?);
            self.lexer.expect(")")?;
            return Ok(Expr::Reduce { op, vars, body });
        }
        self.lexer.expect("(")?;
        if word == "index" {
            let index = self.index()?;
            self.lexer.expect(")")?;
            return Ok(Expr::Index(Box::new(index)));
        }
        let args = self.arguments(Self::expr)?;
        let dtype = DType::ALL.iter().copied().find(|dtype| dtype.short() == word);
        match (word, dtype, <[Expr; 2]>::try_from(args)) {
            ("max", _, Ok([a, b])) => Ok(a.binary(Binary::Max, b)),
            ("min", _, Ok([a, b])) => Ok(a.binary(Binary::Min, b)),
            (_, Some(dtype), Err(args)) if args.len() == 1 => {
                Ok(Expr::Cast(Box::new(args.into_iter().next().unwrap_or_else(zero)), dtype))
            }
            _ => Err(self.lexer.error(format!("there is no function `{word}` of these values"))),
        }
    }

    /// `(a + b)`, or `(0 <= i0 < 4 and … ? yes : no)`, a choice if it begins with a comparison of indices.
    fn brackets(&mut self) -> Result<Expr> {
        let start = self.lexer.clone();
        let sizes = self.sizes.clone();
        match self.select() {
            Ok(Some(select)) => return Ok(select),
            Err(error) => return Err(error),
            Ok(None) => (self.lexer, self.sizes) = (start, sizes),
        }
        self.lexer.expect("(")?;
        let a = self.expr()?;
        let signs = [
            ("+", Binary::Add),
            ("-", Binary::Subtract),
            ("*", Binary::Multiply),
            ("/", Binary::Divide),
            ("<=", Binary::LessEqual),
            ("<", Binary::Less),
            ("==", Binary::Equal),
            ("&&", Binary::And),
            ("||", Binary::Or),
        ];
        let op = signs.iter().find(|(sign, _)| self.lexer.eat(sign)).map(|(_, op)| *op);
        let op = op.ok_or_else(|| self.lexer.error("expected an operator"))?;
        let b = self.expr()?;
        self.lexer.expect(")")?;
        Ok(a.binary(op, b))
    }

    /// A choice; `None` if the bracket does not begin with a test.
    fn select(&mut self) -> Result<Option<Expr>> {
        self.lexer.expect("(")?;
        let mut when = Vec::new();
        loop {
            let Some(test) = self.test() else {
                return if when.is_empty() { Ok(None) } else { Err(self.lexer.error("expected a test")) };
            };
            when.push(test);
            if self.lexer.eat("?") {
                break;
            }
            if !self.lexer.eat_word("and") {
                return if when.len() == 1 { Ok(None) } else { Err(self.lexer.error("expected `?`")) };
            }
        }
        let yes = Box::new(self.expr()?);
        self.lexer.expect(":")?;
        let no = Box::new(self.expr()?);
        self.lexer.expect(")")?;
        Ok(Some(Expr::Select { when, yes, no }))
    }

    fn test(&mut self) -> Option<Within> {
        let first = self.index().ok()?;
        if self.lexer.eat("<=") {
            let from = first.known()?;
            let index = self.index().ok()?;
            let to = if self.lexer.eat("<") { self.lexer.integer().ok()? } else { i64::MAX };
            return Some(Within { index, from, to });
        }
        if !self.lexer.eat("<") {
            return None;
        }
        Some(Within { index: first, from: i64::MIN, to: self.lexer.integer().ok()? })
    }

    /// What stands between commas, up to the closing bracket.
    fn arguments<T>(&mut self, argument: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut args = Vec::new();
        while !self.lexer.eat(")") {
            args.push(argument(self)?);
            if !self.lexer.eat(",") {
                self.lexer.expect(")")?;
                break;
            }
        }
        Ok(args)
    }

    fn indices(&mut self, end: &str) -> Result<Vec<Index>> {
        let mut indices = Vec::new();
        while !self.lexer.eat(end) {
            indices.push(self.index()?);
            if !self.lexer.eat(",") {
                self.lexer.expect(end)?;
                break;
            }
        }
        Ok(indices)
    }

    /// A sum of terms and a number, in the order in which they are printed: that is the normal form.
    fn index(&mut self) -> Result<Index> {
        self.lexer.enter()?;
        let mut index = Index::default();
        loop {
            let factor = if self.lexer.peek().is_some_and(|c| c == '-' || c.is_ascii_digit()) {
                let n = self.lexer.integer()?;
                if !self.lexer.eat("*") {
                    index.constant = n;
                    break;
                }
                n
            } else {
                1
            };
            let atom = self.atom()?;
            index.terms.push((atom, factor));
            if self.lexer.eat("- ") {
                // The smallest integer has no positive counterpart.
                let digits = self.lexer.take_while(|c| c.is_ascii_digit());
                let n = format!("-{digits}").parse();
                index.constant = n.map_err(|_| self.lexer.error("expected an integer"))?;
                break;
            }
            if !self.lexer.eat("+ ") {
                break;
            }
        }
        self.lexer.leave();
        Ok(index)
    }

    fn atom(&mut self) -> Result<Atom> {
        if self.lexer.eat("((") {
            let inner = Box::new(self.index()?);
            self.lexer.expect(")")?;
            let is_division = self.lexer.eat("/");
            if !is_division {
                self.lexer.expect("%")?;
            }
            let by = self.lexer.integer()?;
            if by < 1 {
                return Err(self.lexer.error("an index is divided by a number that is not positive"));
            }
            self.lexer.expect(")")?;
            return Ok(if is_division { Atom::Div(inner, by) } else { Atom::Mod(inner, by) });
        }
        if self.lexer.eat("[") {
            let value = Box::new(self.expr()?);
            self.lexer.expect("<")?;
            let size = self.size()?;
            let wraps = self.lexer.eat_word("wraps");
            self.lexer.expect("]")?;
            return Ok(Atom::Value { value, size, wraps });
        }
        let id = self.var()?;
        let size = self.sizes.get(&id).copied();
        let size = size.ok_or_else(|| self.lexer.error(format!("no loop counts with i{id}")))?;
        Ok(Atom::Var(Var { id, size }))
    }

    /// Variables with their sizes, up to the closing bracket.
    fn vars(&mut self) -> Result<Vec<Var>> {
        let mut vars = Vec::new();
        while !self.lexer.eat("]") {
            let id = self.var()?;
            self.lexer.expect("<")?;
            let size = self.size()?;
            self.sizes.insert(id, size);
            vars.push(Var { id, size });
            if !self.lexer.eat(",") {
                self.lexer.expect("]")?;
                break;
            }
        }
        Ok(vars)
    }

    fn var(&mut self) -> Result<u32> {
        self.lexer.expect("i")?;
        self.var_id()
    }

    fn var_id(&mut self) -> Result<u32> {
        let n = self.size()?;
        u32::try_from(n).map_err(|_| self.lexer.error("the number of a variable is too large"))
    }

    /// A number with its kind, if one comes next.
    fn scalar(&mut self) -> Result<Option<Scalar>> {
        for (word, value) in [("true", true), ("false", false)] {
            if self.lexer.eat_word(word) {
                return Ok(Some(Scalar::Bool(value)));
            }
        }
        if let Some(x) = self.lexer.float() {
            return Ok(Some(Scalar::Float(x)));
        }
        let is_number = self.lexer.peek().is_some_and(|c| c == '-' || c.is_ascii_digit());
        if is_number { self.lexer.wide_integer().map(|n| Some(Scalar::Int(n))) } else { Ok(None) }
    }

    fn dtype_suffix(&mut self) -> Result<Option<DType>> {
        // In `(test ? 1 : 2)` a colon with blanks around it separates.
        if self.lexer.rest().starts_with(':') {
            self.lexer.eat(":").then(|| self.lexer.dtype()).transpose()
        } else {
            Ok(None)
        }
    }

    /// The buffer whose number comes next, if one does.
    fn element(&mut self) -> Result<Option<BufferId>> {
        let is_next = self.lexer.peek() == Some('x')
            && self.lexer.rest()[1..].starts_with(|c: char| c.is_ascii_digit());
        if is_next { self.known_buffer().map(Some) } else { Ok(None) }
    }

    fn known_buffer(&mut self) -> Result<BufferId> {
        self.lexer.expect("x")?;
        let buffer: BufferId = id(&mut self.lexer)?;
        if buffer < self.program.buffers.end() {
            Ok(buffer)
        } else {
            Err(self.lexer.error(format!("there is no x{buffer}")))
        }
    }

    fn float(&mut self) -> Result<f64> {
        self.lexer.float().ok_or_else(|| self.lexer.error("expected a number with a point"))
    }

    /// An integer that is not negative.
    fn size(&mut self) -> Result<i64> {
        let n = self.lexer.integer()?;
        if n < 0 { Err(self.lexer.error("expected an integer that is not negative")) } else { Ok(n) }
    }

    fn count(&mut self) -> Result<usize> {
        self.size().map(|n| n as usize)
    }
}

/// Names of reductions.
const REDUCE_OPS: [(&str, ReduceOp); 8] = [
    ("sum", ReduceOp::Sum),
    ("prod", ReduceOp::Prod),
    ("max", ReduceOp::Max),
    ("min", ReduceOp::Min),
    ("any", ReduceOp::Any),
    ("all", ReduceOp::All),
    ("argmax", ReduceOp::ArgMax),
    ("argmin", ReduceOp::ArgMin),
];

fn zero() -> Expr {
    Expr::Number(Scalar::Int(0), DType::I64)
}

/// The id of this number.
fn id<I: Id>(lexer: &mut Lexer<'_>) -> Result<I> {
    let n = lexer.integer()?;
    match u32::try_from(n) {
        Ok(n) if n < u32::MAX => Ok(I::new(n as usize)),
        _ => Err(lexer.error(format!("{n} is not the number of a buffer"))),
    }
}
