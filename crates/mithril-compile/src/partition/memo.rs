//! What was derived for a use of an op, kept for equal uses: repeated layers are derived once.

use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use mithril_ir::error::Result;
use rustc_hash::{FxHashMap, FxHasher};

use super::cost::Work;
use super::rule::{Arg, Local, Placement, Use};

/// How a use is divided.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) shards: Vec<Option<usize>>,
    pub(super) local: Local,
    pub(super) cost: u64,
}

/// A use, the forms in which its operands exist, and the number of devices.
type Known<T> = (Use, Vec<Vec<Placement>>, usize, T);

/// Choices and costs by use.
#[derive(Debug, Default)]
pub struct Memo {
    choices: RefCell<FxHashMap<u64, Vec<Known<Rc<Choice>>>>>,
    works: RefCell<FxHashMap<u64, Vec<(Use, Work)>>>,
}

impl Memo {
    /// What was chosen for this use with operands in these forms; chosen now if there was none.
    pub(super) fn choice(
        &self,
        call: &Use,
        forms: &[Vec<Placement>],
        devices: usize,
        choose: impl FnOnce() -> Result<Choice>,
    ) -> Result<Rc<Choice>> {
        let key = hash(call, &(forms, devices));
        if let Some((.., choice)) = self.choices.borrow().get(&key).and_then(|known| {
            known.iter().find(|(other, at, count, _)| *count == devices && at == forms && equal(call, other))
        }) {
            return Ok(Rc::clone(choice));
        }
        let choice = Rc::new(choose()?);
        let entry = (call.clone(), forms.to_vec(), devices, Rc::clone(&choice));
        self.choices.borrow_mut().entry(key).or_default().push(entry);
        Ok(choice)
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
    std::ptr::eq(a.op, b.op) && a.args == b.args && a.outputs == b.outputs
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
