# Writes OUTPUT with the commit of SOURCE_DIR, and only if it changed. Run by the build each time.
cmake_minimum_required(VERSION 3.22)
set(commit "unknown")
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(NOT failed AND described)
  set(commit ${described})
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define DENDRITE_COMMIT \"${commit}\"\n")
