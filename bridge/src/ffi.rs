//! What every entry point shares: status codes, the last error, buffers, and the guard that turns
//! panics into a status.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, CString};
use std::panic::{catch_unwind, AssertUnwindSafe, PanicHookInfo};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

pub const ABI_VERSION: u32 = 2; // DN_ABI_VERSION

pub type Status = c_int;
pub const OK: Status = 0;
pub const ABSENT: Status = 1;
const ERROR: Status = -1;
const PANIC: Status = -2;

/// Any failure, as the text that `dn_last_error` gives.
#[derive(Debug)]
pub struct BridgeError(pub String);
pub type Result<T> = std::result::Result<T, BridgeError>;

impl<E: std::fmt::Display> From<E> for BridgeError {
    fn from(error: E) -> Self {
        BridgeError(error.to_string())
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

fn set_last_error(message: &str) {
    // A NUL inside the text would end it early on the C side.
    let text = CString::new(message.replace('\0', "\u{fffd}")).unwrap_or_default();
    LAST_ERROR.with(|slot| *slot.borrow_mut() = text);
}

/// "no entry found for key (tokenizers-0.23.2/src/processors/template.rs:563)": without the folder
/// in which cargo keeps sources.
fn what_and_where(info: &PanicHookInfo) -> String {
    let payload = info.payload();
    let what = payload.downcast_ref::<&str>().copied();
    let what = what.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let place = info.location().map_or_else(String::new, |location| {
        let file = location.file();
        let in_crate = file.split_once("/registry/src/").and_then(|(_, rest)| rest.split_once('/'));
        format!("{}:{}", in_crate.map_or(file, |(_, rest)| rest), location.line())
    });
    format!("{} ({place})", what.unwrap_or("a panic"))
}

/// Rust's own hook prints to stderr; a library must not, so keep the message for `dn_last_error`
/// instead. The hook is that of the Rust standard library inside this archive: no other Rust code
/// sees it. llguidance puts one of its own before the present one, once, which would write down a
/// whole backtrace: let it do so now, and then take its place.
pub fn install_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = llguidance::panic_utils::catch_unwind(|| Ok(()));
        std::panic::set_hook(Box::new(|info| {
            #[cfg(test)]
            eprintln!("{info}"); // else a test would fail without a word
            LAST_PANIC.with(|slot| *slot.borrow_mut() = what_and_where(info));
        }));
    });
}

/// Also after a panic of another holder: `guard` has told of that.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn last_panic() -> String {
    LAST_PANIC.with(|slot| slot.take())
}

/// Runs the body of an entry point: errors and panics become a status and the last error.
pub fn guard(body: impl FnOnce() -> Result<Status>) -> Status {
    install_panic_hook();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(BridgeError(message))) => {
            set_last_error(&message);
            ERROR
        }
        Err(_) => {
            let what = last_panic();
            set_last_error(&format!("internal error in the bridge: {what}"));
            PANIC
        }
    }
}

/// # Safety
/// `data` must point to `size` values that stay unchanged while the result is used, or `size` must
/// be 0.
pub unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, size)
    }
}

/// # Safety
/// As for `slice`, and nothing else uses the values meanwhile.
pub unsafe fn slice_mut<'a, T>(data: *mut T, size: usize) -> &'a mut [T] {
    if size == 0 {
        &mut []
    } else {
        std::slice::from_raw_parts_mut(data, size)
    }
}

/// # Safety
/// As for `slice`.
pub unsafe fn text<'a>(data: *const c_char, size: usize) -> Result<&'a str> {
    Ok(std::str::from_utf8(slice(data.cast::<u8>(), size))?)
}

#[repr(C)]
pub struct Buffer {
    data: *mut u8,
    size: usize,
}

#[repr(C)]
pub struct Ids {
    data: *mut i32,
    size: usize,
}

fn leak<T>(values: Vec<T>) -> (*mut T, usize) {
    let values = Box::leak(values.into_boxed_slice());
    (values.as_mut_ptr(), values.len())
}

/// # Safety
/// `data` and `size` must come from one call of `leak` and not have been freed.
unsafe fn reclaim<T>(data: *mut T, size: usize) {
    if !data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(data, size)));
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        let (data, size) = leak(bytes);
        Buffer { data, size }
    }
}

impl From<String> for Buffer {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<Vec<i32>> for Ids {
    fn from(ids: Vec<i32>) -> Self {
        let (data, size) = leak(ids);
        Ids { data, size }
    }
}

#[no_mangle]
pub extern "C" fn dn_abi_version() -> u32 {
    ABI_VERSION
}

#[no_mangle]
pub extern "C" fn dn_last_error() -> *const c_char {
    LAST_ERROR.with(|slot| slot.borrow().as_ptr())
}

/// # Safety
/// `buffer` must come from this library and not have been freed.
#[no_mangle]
pub unsafe extern "C" fn dn_buffer_free(buffer: Buffer) {
    reclaim(buffer.data, buffer.size);
}

/// # Safety
/// `ids` must come from this library and not have been freed.
#[no_mangle]
pub unsafe extern "C" fn dn_ids_free(ids: Ids) {
    reclaim(ids.data, ids.size);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        // SAFETY: the pointer is valid until the next failing call of this thread.
        unsafe { std::ffi::CStr::from_ptr(dn_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn an_error_becomes_a_status_and_a_message() {
        assert_eq!(guard(|| Err(BridgeError("no\0pe".into()))), ERROR);
        assert_eq!(last_error(), "no\u{fffd}pe");
    }

    #[test]
    fn a_panic_does_not_leave_the_library() {
        assert_eq!(guard(|| panic!("boom")), PANIC);
        assert!(last_error().contains("boom"), "{}", last_error());
        assert_eq!(guard(|| Ok(OK)), OK);
    }

    #[test]
    fn buffers_can_be_freed_when_empty() {
        // SAFETY: each is freed once.
        unsafe {
            dn_buffer_free(Buffer::from(String::new()));
            dn_ids_free(Ids::from(vec![1, 2]));
            dn_buffer_free(Buffer { data: std::ptr::null_mut(), size: 0 });
        }
    }
}
