//! Which processor a thread runs on: a worker that is woken on the processor of its caller has to leave it, since the
//! caller waits there actively. Guests of a virtual machine wake threads so, for a processor that the host has put to
//! sleep does not look idle to them, and it takes them longer than a call to spread threads again.

#[cfg(target_os = "linux")]
mod system {
    use std::ffi::c_int;

    /// As many processors as `cpu_set_t` has.
    type Mask = [u64; 16];

    unsafe extern "C" {
        fn sched_getcpu() -> c_int;
        fn sched_getaffinity(thread: c_int, bytes: usize, mask: *mut Mask) -> c_int;
        fn sched_setaffinity(thread: c_int, bytes: usize, mask: *const Mask) -> c_int;
    }

    pub fn processor() -> c_int {
        // SAFETY: takes nothing and only reads.
        unsafe { sched_getcpu() }
    }

    pub fn leave(taken: c_int) {
        let Ok(bit) = usize::try_from(taken) else { return };
        let mut all: Mask = [0; 16];
        if processor() != taken || bit >= 64 * all.len() {
            return;
        }
        // SAFETY: the mask has the size that is given; 0 is the calling thread.
        if unsafe { sched_getaffinity(0, size_of::<Mask>(), &raw mut all) } < 0 {
            return;
        }
        let mut others = all;
        others[bit / 64] &= !(1 << (bit % 64));
        if others.iter().all(|word| *word == 0) {
            return;
        }
        // SAFETY: as above; the thread may go everywhere again at once.
        unsafe {
            sched_setaffinity(0, size_of::<Mask>(), &raw const others);
            sched_setaffinity(0, size_of::<Mask>(), &raw const all);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::ffi::c_int;

    pub fn processor() -> c_int {
        -1
    }

    pub fn leave(_taken: c_int) {}
}

pub use system::{leave, processor};
