//! Ends work of llguidance that no limit of its own counts. Of `start: X X` with /a+/ as X, where the
//! first X takes all, it forces one "a" after another without an end.

use crate::ffi::lock;
use llguidance::CancellationHandle;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

/// Some ten times what any call took that came to an end.
pub const LONGEST: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });
const STEP: Duration = Duration::from_millis(200);

struct Call {
    handle: CancellationHandle,
    end: Instant,
    number: u64,
}

struct Calls {
    running: Vec<Call>,
    next: u64,
}

static CALLS: Mutex<Calls> = Mutex::new(Calls { running: Vec::new(), next: 0 });

/// A call under way, until it is dropped.
pub struct Watched(u64);

impl Watched {
    pub fn new(handle: CancellationHandle) -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| drop(std::thread::Builder::new().spawn(watch)));
        let mut calls = lock(&CALLS);
        let number = calls.next;
        calls.next += 1;
        calls.running.push(Call { handle, end: Instant::now() + LONGEST, number });
        Watched(number)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        lock(&CALLS).running.retain(|call| call.number != self.0);
    }
}

fn watch() {
    loop {
        std::thread::sleep(STEP);
        let now = Instant::now();
        lock(&CALLS)
            .running
            .iter()
            .filter(|call| call.end < now)
            .for_each(|call| call.handle.cancel());
    }
}
