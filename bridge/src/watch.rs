//! Ends work of llguidance that no limit of its own counts. Of `start: X X` with /a+/ as X, where the
//! first X takes all, it forces one "a" after another without an end.

use crate::ffi::lock;
use llguidance::CancellationHandle;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Of a thread's own time: some ten times what any call took that came to an end.
pub const LONGEST: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });
const STEP: Duration = Duration::from_millis(5);
/// Steps without a call after which the thread ends; the next call starts another.
const QUIET: u32 = 200;

/// Of one vocabulary. It has a thread while calls come, and none once it is dropped.
#[derive(Default)]
pub struct Watch {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    calls: Mutex<Calls>,
    closed: Condvar,
}

#[derive(Default)]
struct Calls {
    running: Vec<Call>,
    next: u64,
    is_watched: bool,
    is_closed: bool,
}

struct Call {
    handle: CancellationHandle,
    clock: libc::clockid_t, // of the thread that it is in
    end: Duration,
    number: u64,
}

/// A call under way, until it is dropped, in the thread that made it.
pub struct Watched<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Watch {
    /// Cancels by `handle` what takes longer than `limit` from now on.
    pub fn call(&self, handle: CancellationHandle, limit: Duration) -> Watched<'_> {
        let mut calls = lock(&self.shared.calls);
        if !calls.is_watched {
            self.start(&mut calls);
        }
        let number = calls.next;
        calls.next += 1;
        let clock = own_clock();
        calls.running.push(Call { handle, clock, end: time_of(clock) + limit, number });
        Watched { shared: &self.shared, number }
    }

    fn start(&self, calls: &mut Calls) {
        let shared = self.shared.clone();
        let spawned = std::thread::Builder::new().spawn(move || shared.watch());
        calls.is_watched = spawned.is_ok();
        *lock(&self.thread) = spawned.ok(); // (one before has ended)
    }

    #[cfg(test)]
    fn is_watching(&self) -> bool {
        lock(&self.shared.calls).is_watched
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.shared.calls).is_closed = true;
        self.shared.closed.notify_one();
        if let Some(thread) = lock(&self.thread).take() {
            drop(thread.join());
        }
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        lock(&self.shared.calls).running.retain(|call| call.number != self.number);
    }
}

impl Shared {
    fn watch(&self) {
        let mut calls = lock(&self.calls);
        let mut quiet = 0;
        while !calls.is_closed && quiet < QUIET {
            let before = calls.next;
            let waited = self.closed.wait_timeout(calls, STEP);
            calls = waited.unwrap_or_else(PoisonError::into_inner).0;
            let is_quiet = calls.running.is_empty() && calls.next == before;
            quiet = if is_quiet { quiet + 1 } else { 0 };
            for call in calls.running.iter().filter(|call| call.end < time_of(call.clock)) {
                call.handle.cancel();
            }
        }
        calls.is_watched = false;
    }
}

fn own_clock() -> libc::clockid_t {
    let mut clock = libc::CLOCK_MONOTONIC; // where a thread has none of its own
                                           // SAFETY: writes the clock of this thread.
    unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
    clock
}

/// A busy machine is no fault of a grammar, so this is what the thread has had of it.
fn time_of(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec. The clock is that of a thread in a call.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn handle() -> CancellationHandle {
        CancellationHandle::default()
    }

    fn wait_until(what: impl Fn() -> bool) {
        let begin = Instant::now();
        while !what() {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn long_calls_are_cancelled_and_short_ones_are_not() {
        let watch = Watch::default();
        let (short, long) = (handle(), handle());
        drop(watch.call(short.clone(), Duration::ZERO));
        let patient = handle();
        let _patient = watch.call(patient.clone(), Duration::from_secs(1000));
        let _long = watch.call(long.clone(), Duration::from_millis(30));
        let begin = time_of(own_clock());
        while !long.is_cancelled() {
            assert!(time_of(own_clock()) < begin + Duration::from_secs(60));
        }
        assert!(time_of(own_clock()) >= begin + Duration::from_millis(29));
        assert!(!short.is_cancelled() && !patient.is_cancelled());
    }

    #[test]
    fn the_thread_ends_without_calls_and_begins_again() {
        let watch = Watch::default();
        assert!(!watch.is_watching());
        for _ in 0..2 {
            drop(watch.call(handle(), LONGEST));
            assert!(watch.is_watching());
            wait_until(|| !watch.is_watching());
        }
        drop(watch.call(handle(), LONGEST));
        let shared = watch.shared.clone();
        drop(watch);
        wait_until(|| Arc::strong_count(&shared) == 1); // no thread has it
    }
}
