#include <pthread.h>

#include <condition_variable>
#include <mutex>

// std::condition_variable::wait has a new version since GCC 12's libstdc++, which systems with GCC
// 11's lack (RHEL 9); a wheel that is built with a newer one runs there by this. The linker puts it
// in the place of the function (--wrap in CMakeLists.txt).

extern "C" void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(
    std::condition_variable* condition, std::unique_lock<std::mutex>* lock) {
  pthread_cond_wait(condition->native_handle(), lock->mutex()->native_handle());
}
