// What a library of another build exports.

extern "C" __attribute__((visibility("default"))) const char* dendrite_backend_build_id() {
  return "dendrite 0.0.1 (sources abc, GCC 1, libstdc++ 2)";
}

extern "C" __attribute__((visibility("default"))) void* dendrite_backend(const void*) {
  return nullptr;
}
