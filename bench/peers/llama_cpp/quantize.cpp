// quantize: a GGUF file in another type, by llama.cpp's own quantizer.
//   quantize FROM.gguf TO.gguf q8_0|q4_0|q4_k
#include <cstdio>
#include <map>
#include <string>

#include "llama.h"

int main(int count, char** arguments) {
  const std::map<std::string, llama_ftype> types{{"q8_0", LLAMA_FTYPE_MOSTLY_Q8_0},
                                                 {"q4_0", LLAMA_FTYPE_MOSTLY_Q4_0},
                                                 {"q4_k", LLAMA_FTYPE_MOSTLY_Q4_K_M}};
  const auto type = count == 4 ? types.find(arguments[3]) : types.end();
  if (type == types.end()) {
    std::fprintf(stderr, "usage: quantize FROM.gguf TO.gguf q8_0|q4_0|q4_k\n");
    return 2;
  }
  llama_backend_init();
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = type->second;
  return llama_model_quantize(arguments[1], arguments[2], &params) == 0 ? 0 : 1;
}
