//! A machine for pickles that hold tensors. It builds dicts, lists, texts, numbers and descriptions of tensors, and
//! nothing else: what a pickle may name is a closed list ([`Global`]), and no code of a file or of Python runs.
//!
//! Objects lie in one list and point at each other by their place in it, so that neither depth nor cycles matter to
//! the machine; every object costs at least one byte of the file.

use std::collections::HashMap;

use mithril_ir::{Code, Error, Result};

use super::globals::{self, Global, Rebuild};
use super::weight::Stored;

/// A value: small ones themselves, others by their place among [`Objects`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// `None`, floats, and all that is of no interest here.
    Nothing,
    Bool(bool),
    Int(i64),
    At(usize),
}

/// What a value can point at.
#[derive(Debug)]
pub(super) enum Object {
    Text(Box<str>),
    /// Bytes, and integers of more than 64 bits as their bytes.
    Bytes(Box<[u8]>),
    Tuple(Vec<Value>),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    Global(Global),
    Storage(Storage),
    Tensor(Described),
}

/// Elements that tensors are views of.
#[derive(Debug)]
pub(super) struct Storage {
    pub key: Box<str>,
    /// `None` if it counts bytes.
    pub stored: Option<Stored>,
    pub count: usize,
    /// First element, in files of before 2020, where a storage may be part of another.
    pub first: usize,
}

/// A tensor: a view of a storage, which is another object.
#[derive(Debug)]
pub(super) struct Described {
    pub storage: usize,
    pub stored: Stored,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

/// All objects of one file.
#[derive(Debug, Default)]
pub(super) struct Objects(pub Vec<Object>);

impl Objects {
    pub fn get(&self, value: Value) -> Option<&Object> {
        match value {
            Value::At(i) => self.0.get(i),
            _ => None,
        }
    }
    pub fn text(&self, value: Value) -> Option<&str> {
        match self.get(value) {
            Some(Object::Text(text)) => Some(text),
            _ => None,
        }
    }
    pub fn tuple(&self, value: Value) -> Option<&[Value]> {
        match self.get(value) {
            Some(Object::Tuple(items)) => Some(items),
            _ => None,
        }
    }
    /// Runs the pickle at the begin of `bytes`: its value, and how long it is.
    pub fn load(&mut self, bytes: &[u8]) -> Result<(Value, usize)> {
        let mut machine =
            Machine { objects: self, bytes, at: 0, stack: vec![], marks: vec![], memo: HashMap::new() };
        let value = machine.run()?;
        Ok((value, machine.at))
    }
}

struct Machine<'a> {
    objects: &'a mut Objects,
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
}

impl Machine<'_> {
    fn run(&mut self) -> Result<Value> {
        loop {
            let code = self.take(1)?[0];
            match code {
                b'.' => return self.pop(),
                b'N' => self.stack.push(Value::Nothing),
                0x88 => self.stack.push(Value::Bool(true)),
                0x89 => self.stack.push(Value::Bool(false)),
                b'K' | b'M' | b'J' | 0x8a | 0x8b | b'G' => self.number(code)?,
                b'X' | 0x8c | 0x8d | b'U' | b'T' => self.text(code)?,
                b'C' | b'B' | 0x8e => {
                    let bytes = self.counted(code)?.into();
                    self.push(Object::Bytes(bytes));
                }
                b')' | b']' | b'}' | 0x8f | b't' | 0x85..=0x87 | b'l' | b'd' => self.container(code)?,
                b'a' | b'e' | 0x90 | b's' | b'u' => self.fill(code)?,
                b'q' | b'r' | 0x94 | b'h' | b'j' => self.remember(code)?,
                b'c' | 0x93 => self.global(code)?,
                b'R' | 0x81 => self.call()?,
                b'Q' => self.persistent()?,
                // Attributes of an object: those of an OrderedDict or a tensor say nothing about values.
                b'b' => {
                    self.pop()?;
                    self.top()?;
                }
                _ => self.control(code)?,
            }
        }
    }

    fn control(&mut self, code: u8) -> Result<()> {
        match code {
            0x80 => {
                let version = self.take(1)?[0];
                if !(2..=5).contains(&version) {
                    return Err(bad(format!(
                        "its pickle is of protocol {version}, and protocols 2 to 5 are supported"
                    )));
                }
            }
            0x95 => {
                self.take(8)?;
            }
            b'(' => self.marks.push(self.stack.len()),
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                self.since_mark()?;
            }
            b'2' => self.stack.push(self.top()?),
            b'i' => {
                let (module, name) = (self.line()?, self.line()?);
                return Err(globals::refused(&module, &name));
            }
            _ => {
                let message = format!("its pickle has the operation {code:#04x}, which tensors never need");
                return Err(Error::new(Code::Refused, message).help(globals::HELP));
            }
        }
        Ok(())
    }

    // --- bytes and stack ------------------------------------------------------------------------------------------

    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| bad("its pickle ends too early"))?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }
    /// An unsigned number of `width` bytes.
    fn unsigned(&mut self, width: usize) -> Result<u64> {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(self.take(width)?);
        Ok(u64::from_le_bytes(wide))
    }
    /// Bytes behind their count, which has as many bytes as the operation says.
    fn counted(&mut self, code: u8) -> Result<&[u8]> {
        let width = match code {
            0x8a | 0x8c | b'U' | b'C' => 1,
            0x8d | 0x8e => 8,
            _ => 4,
        };
        let count = self.unsigned(width)?;
        self.take(usize::try_from(count).unwrap_or(usize::MAX))
    }
    fn line(&mut self) -> Result<String> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|&b| b == b'\n').ok_or_else(|| bad("its pickle ends too early"))?;
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        self.at += end + 1;
        Ok(line)
    }
    fn push(&mut self, object: Object) {
        self.stack.push(Value::At(self.objects.0.len()));
        self.objects.0.push(object);
    }
    fn pop(&mut self) -> Result<Value> {
        if self.stack.len() <= self.marks.last().copied().unwrap_or(0) {
            return Err(malformed());
        }
        self.stack.pop().ok_or_else(malformed)
    }
    fn top(&self) -> Result<Value> {
        self.stack.last().copied().ok_or_else(malformed)
    }
    fn since_mark(&mut self) -> Result<Vec<Value>> {
        let mark = self.marks.pop().ok_or_else(malformed)?;
        Ok(self.stack.split_off(mark))
    }

    // --- values ---------------------------------------------------------------------------------------------------

    fn number(&mut self, code: u8) -> Result<()> {
        let value = match code {
            b'K' => Value::Int(self.unsigned(1)? as i64),
            b'M' => Value::Int(self.unsigned(2)? as i64),
            b'J' => Value::Int(i64::from(self.unsigned(4)? as i32)),
            b'G' => {
                self.take(8)?;
                Value::Nothing
            }
            _ => {
                let bytes = self.counted(code)?;
                if bytes.len() > 8 {
                    let bytes = bytes.into();
                    self.push(Object::Bytes(bytes));
                    return Ok(());
                }
                let sign = if bytes.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 };
                let mut wide = [sign; 8];
                wide[..bytes.len()].copy_from_slice(bytes);
                Value::Int(i64::from_le_bytes(wide))
            }
        };
        self.stack.push(value);
        Ok(())
    }

    fn text(&mut self, code: u8) -> Result<()> {
        let bytes = self.counted(code)?;
        let text = std::str::from_utf8(bytes)
            .map_err(|_| bad("its pickle holds a string that is not valid UTF-8"))?
            .into();
        self.push(Object::Text(text));
        Ok(())
    }

    fn container(&mut self, code: u8) -> Result<()> {
        let object = match code {
            b')' => Object::Tuple(vec![]),
            b']' | 0x8f => Object::List(vec![]),
            b'}' => Object::Dict(vec![]),
            b't' => Object::Tuple(self.since_mark()?),
            b'l' => Object::List(self.since_mark()?),
            b'd' => Object::Dict(pairs(&self.since_mark()?)?),
            _ => {
                let mut items = (0x85..=code).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
                items.reverse();
                Object::Tuple(items)
            }
        };
        self.push(object);
        Ok(())
    }

    /// Adds items to the list, or pairs to the dict, that lies below them.
    fn fill(&mut self, code: u8) -> Result<()> {
        let items = match code {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.since_mark()?,
        };
        let Value::At(target) = self.top()? else { return Err(malformed()) };
        match (&mut self.objects.0[target], code) {
            (Object::List(collection), b'a' | b'e' | 0x90) => collection.extend(items),
            (Object::Dict(collection), b's' | b'u') => collection.extend(pairs(&items)?),
            _ => return Err(malformed()),
        }
        Ok(())
    }

    fn remember(&mut self, code: u8) -> Result<()> {
        let place = match code {
            0x94 => self.memo.len() as u32,
            b'q' | b'h' => self.unsigned(1)? as u32,
            _ => self.unsigned(4)? as u32,
        };
        if matches!(code, b'h' | b'j') {
            let value = self.memo.get(&place).copied().ok_or_else(malformed)?;
            self.stack.push(value);
        } else {
            self.memo.insert(place, self.top()?);
        }
        Ok(())
    }

    // --- names and what they make ---------------------------------------------------------------------------------

    fn global(&mut self, code: u8) -> Result<()> {
        let (module, name) = if code == b'c' {
            (self.line()?, self.line()?)
        } else {
            let (name, module) = (self.pop()?, self.pop()?);
            let text = |v| self.objects.text(v).map(str::to_owned).ok_or_else(malformed);
            (text(module)?, text(name)?)
        };
        self.push(Object::Global(Global::find(&module, &name)?));
        Ok(())
    }

    fn call(&mut self) -> Result<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let Some(Object::Global(global)) = self.objects.get(function) else {
            return Err(malformed());
        };
        let arguments = self.objects.tuple(arguments).ok_or_else(malformed)?;
        match global {
            Global::Rebuild(rebuild) => {
                let value = self.rebuild(*rebuild, arguments)?;
                match value {
                    Made::Tensor(tensor) => self.push(Object::Tensor(tensor)),
                    Made::Same(value) => self.stack.push(value),
                }
            }
            Global::Dict => {
                let dict = self.dict(arguments)?;
                self.push(Object::Dict(dict));
            }
            Global::Set => self.push(Object::List(vec![])),
            Global::Size => self.stack.push(*arguments.first().ok_or_else(malformed)?),
            Global::Ignored => self.stack.push(Value::Nothing),
            Global::Storage(_) | Global::DType(_) | Global::Class => return Err(malformed()),
        }
        Ok(())
    }

    /// `OrderedDict()`, or `OrderedDict([(key, value), …])`.
    fn dict(&self, arguments: &[Value]) -> Result<Vec<(Value, Value)>> {
        let Some(&first) = arguments.first() else { return Ok(vec![]) };
        let Some(Object::List(items) | Object::Tuple(items)) = self.objects.get(first) else {
            return Err(malformed());
        };
        let pair = |&item: &Value| match self.objects.get(item) {
            Some(Object::List(pair) | Object::Tuple(pair)) if pair.len() == 2 => Ok((pair[0], pair[1])),
            _ => Err(malformed()),
        };
        items.iter().map(pair).collect()
    }

    fn rebuild(&self, rebuild: Rebuild, arguments: &[Value]) -> Result<Made> {
        let at = |i: usize| arguments.get(i).copied().ok_or_else(malformed);
        match rebuild {
            // (tensor, requires_grad, …)
            Rebuild::Parameter => match self.objects.get(at(0)?) {
                Some(Object::Tensor(_)) => Ok(Made::Same(at(0)?)),
                _ => Err(malformed()),
            },
            // (function, class, its arguments, attributes)
            Rebuild::Subclass => {
                let (Some(Object::Global(Global::Rebuild(inner))), Some(Object::Global(Global::Class))) =
                    (self.objects.get(at(0)?), self.objects.get(at(1)?))
                else {
                    return Err(malformed());
                };
                if *inner == Rebuild::Subclass {
                    return Err(malformed());
                }
                self.rebuild(*inner, self.objects.tuple(at(2)?).ok_or_else(malformed)?)
            }
            // (storage, offset, shape, strides, …); the dtype of `Typed` stands behind three more.
            Rebuild::Tensor | Rebuild::Typed => {
                let Value::At(storage) = at(0)? else { return Err(malformed()) };
                let Some(Object::Storage(about)) = self.objects.0.get(storage) else {
                    return Err(malformed());
                };
                let stored = match (rebuild, &about.stored) {
                    (Rebuild::Typed, _) => match self.objects.get(at(6)?) {
                        Some(Object::Global(Global::DType(stored))) => stored.clone(),
                        _ => return Err(malformed()),
                    },
                    (_, Some(stored)) => stored.clone(),
                    (_, None) => return Err(malformed()),
                };
                let (offset, shape, strides) = (index(at(1)?)?, self.sizes(at(2)?)?, self.sizes(at(3)?)?);
                Ok(Made::Tensor(Described { storage, stored, offset, shape, strides }))
            }
        }
    }

    fn sizes(&self, value: Value) -> Result<Vec<usize>> {
        self.objects.tuple(value).ok_or_else(malformed)?.iter().map(|&v| index(v)).collect()
    }

    /// `("storage", its type, key, device, count)`, and in old files the part of another storage that it is.
    fn persistent(&mut self) -> Result<()> {
        let id = self.pop()?;
        let Some([kind, class, key, _, count, view @ ..]) = self.objects.tuple(id) else {
            return Err(malformed());
        };
        if self.objects.text(*kind) != Some("storage") {
            return Err(malformed());
        }
        let Some(Object::Global(Global::Storage(stored))) = self.objects.get(*class) else {
            return Err(malformed());
        };
        let first = match view.first().and_then(|&v| self.objects.tuple(v)) {
            Some([_, first, _]) => index(*first)?,
            _ => 0,
        };
        let key = self.objects.text(*key).ok_or_else(malformed)?.into();
        let storage = Storage { key, stored: stored.clone(), count: index(*count)?, first };
        self.push(Object::Storage(storage));
        Ok(())
    }
}

/// What rebuilding gives.
enum Made {
    Tensor(Described),
    Same(Value),
}

fn pairs(items: &[Value]) -> Result<Vec<(Value, Value)>> {
    if !items.len().is_multiple_of(2) {
        return Err(malformed());
    }
    Ok(items.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}

/// A number that counts something.
fn index(value: Value) -> Result<usize> {
    match value {
        Value::Int(n) => usize::try_from(n).map_err(|_| bad(format!("a size, stride or offset is {n}"))),
        _ => Err(malformed()),
    }
}

pub(super) fn malformed() -> Error {
    bad("its pickle is malformed")
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(Code::BadFile, message).help("it may be incomplete: fetch it again")
}
