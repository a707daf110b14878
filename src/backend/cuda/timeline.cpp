#include "backend/cuda/timeline.h"

#include <utility>

namespace dendrite::cuda {

Timeline::~Timeline() {
  for (cudaEvent_t event : {begin_, end_, last_end_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

void Timeline::start() {
  for (cudaEvent_t* event : {&begin_, &end_, &last_end_}) {
    if (*event == nullptr) check(cudaEventCreate(event), "timeline");
  }
  running_ = true;
  in_step_ = false;
  has_last_ = false;
  time_ = {};
}

void Timeline::pass_begins() {
  if (!running_) return;
  check(cudaEventRecord(begin_, device_.stream()), "timeline");
  in_step_ = true;
}

void Timeline::draws_end() {
  if (!running_ || !in_step_) return;
  check(cudaEventRecord(end_, device_.stream()), "timeline");
}

void Timeline::collect() {
  if (!running_ || !in_step_) return;
  in_step_ = false;
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin_, end_), "timeline");
  if (has_last_) {
    ++time_.steps;
    time_.busy_ms += ms;
    check(cudaEventElapsedTime(&ms, last_end_, begin_), "timeline");
    time_.idle_ms += ms;
  }
  std::swap(end_, last_end_);
  has_last_ = true;
}

}  // namespace dendrite::cuda
