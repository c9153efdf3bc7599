//! What was derived for a use of an op, kept for equal uses: repeated layers are derived once.

use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use mithril_ir::error::Result;
use rustc_hash::{FxHashMap, FxHasher};

use super::choose::{Choice, Operand};
use super::cost::Work;
use super::rule::{Arg, Local, Placement, Use};
use super::seams::Links;

/// A use, what its operands are, where its result has to lie, and the number of devices.
type Known<T> = (Use, Vec<Operand>, Option<Placement>, usize, T);

/// A use, where its result is to lie, and the number of devices.
type Asked<T> = (Use, Placement, usize, T);

/// How operands have to lie, and what a device computes of them.
pub(super) type Way = Rc<(Vec<Placement>, Local)>;

/// A use, the devices, and what belongs together there.
type Linked = (Use, usize, Rc<Links>);

/// Choices and costs by use.
#[derive(Debug, Default)]
pub struct Memo {
    choices: RefCell<FxHashMap<u64, Vec<Known<Rc<Choice>>>>>,
    works: RefCell<FxHashMap<u64, Vec<(Use, Work)>>>,
    ways: RefCell<FxHashMap<u64, Vec<Asked<Option<Way>>>>>,
    links: RefCell<FxHashMap<u64, Vec<Linked>>>,
}

impl Memo {
    /// What was chosen for this use with such operands; chosen now if there was none.
    pub(super) fn choice(
        &self,
        call: &Use,
        forms: &[Operand],
        preferred: Option<Placement>,
        devices: usize,
        choose: impl FnOnce() -> Result<Choice>,
    ) -> Result<Rc<Choice>> {
        let key = hash(call, &(forms, preferred, devices));
        let is_known = |known: &&Known<Rc<Choice>>| {
            known.3 == devices && known.2 == preferred && known.1 == forms && equal(call, &known.0)
        };
        if let Some(known) = self.choices.borrow().get(&key).and_then(|all| all.iter().find(is_known)) {
            return Ok(Rc::clone(&known.4));
        }
        let choice = Rc::new(choose()?);
        let entry = (call.clone(), forms.to_vec(), preferred, devices, Rc::clone(&choice));
        self.choices.borrow_mut().entry(key).or_default().push(entry);
        Ok(choice)
    }
    /// The way to compute a use so that its result lies there; looked for now if there was none.
    pub(super) fn way(
        &self,
        call: &Use,
        to: Placement,
        devices: usize,
        find: impl FnOnce() -> Option<Way>,
    ) -> Option<Way> {
        let key = hash(call, &(to, devices));
        if let Some((.., way)) = self.ways.borrow().get(&key).and_then(|known| {
            known.iter().find(|(other, at, count, _)| *count == devices && *at == to && equal(call, other))
        }) {
            return way.clone();
        }
        let way = find();
        self.ways.borrow_mut().entry(key).or_default().push((call.clone(), to, devices, way.clone()));
        way
    }
    /// What a use says of its axes.
    pub(super) fn links(&self, call: &Use, devices: usize, find: impl FnOnce() -> Links) -> Rc<Links> {
        let key = hash(call, &devices);
        let is_known = |(other, count, _): &&(Use, usize, Rc<Links>)| *count == devices && equal(call, other);
        if let Some(known) = self.links.borrow().get(&key).and_then(|all| all.iter().find(is_known)) {
            return Rc::clone(&known.2);
        }
        let links = Rc::new(find());
        self.links.borrow_mut().entry(key).or_default().push((call.clone(), devices, Rc::clone(&links)));
        links
    }
    /// What a use costs.
    pub(super) fn work(&self, call: &Use) -> Work {
        let key = hash(call, &());
        let known = self
            .works
            .borrow()
            .get(&key)
            .and_then(|all| all.iter().find(|(other, _)| equal(call, other)).map(|(_, work)| *work));
        known.unwrap_or_else(|| {
            let work = Work::of(call);
            self.works.borrow_mut().entry(key).or_default().push((call.clone(), work));
            work
        })
    }
}

fn equal(a: &Use, b: &Use) -> bool {
    a.op == b.op && a.args == b.args && a.outputs == b.outputs
}

/// Literals do not take part: they are compared.
fn hash(call: &Use, rest: &impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    std::ptr::from_ref(call.op).hash(&mut hasher);
    for arg in &call.args {
        if let Arg::Tensor(ty) = arg {
            ty.hash(&mut hasher);
        }
    }
    call.outputs.hash(&mut hasher);
    rest.hash(&mut hasher);
    hasher.finish()
}
