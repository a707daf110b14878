#include "backend/cuda/base/timeline.h"

namespace dendrite::cuda {

Timeline::~Timeline() {
  const DeviceScope here = device_.last_scope();
  for (const Step& step : steps_) {
    if (step.begin != nullptr) cudaEventDestroy(step.begin);
    if (step.end != nullptr) cudaEventDestroy(step.end);
  }
}

void Timeline::start() {
  for (Step& step : steps_) {
    if (step.begin == nullptr) check(cudaEventCreate(&step.begin), "timeline");
    if (step.end == nullptr) check(cudaEventCreate(&step.end), "timeline");
  }
  running_ = true;
  in_step_ = false;
  has_last_ = false;
  oldest_ = next_;
  time_ = {};
}

void Timeline::pass_begins() {
  if (!running_) return;
  check(cudaEventRecord(step(next_).begin, device_.stream()), "timeline");
  in_step_ = true;
}

void Timeline::draws_end() {
  if (!running_ || !in_step_) return;
  check(cudaEventRecord(step(next_).end, device_.stream()), "timeline");
  in_step_ = false;
  ++next_;
}

void Timeline::collect() {
  if (!running_ || oldest_ == next_) return;
  const Step& done = step(oldest_);
  if (has_last_) {
    float ms = 0;
    ++time_.steps;
    check(cudaEventElapsedTime(&ms, done.begin, done.end), "timeline");
    time_.busy_ms += ms;
    check(cudaEventElapsedTime(&ms, step(last_).end, done.begin), "timeline");
    time_.idle_ms += ms;
  }
  last_ = oldest_++;
  has_last_ = true;
}

void Timeline::forget() {
  if (oldest_ == next_) return;
  oldest_ = next_;
  has_last_ = false;
}

}  // namespace dendrite::cuda
