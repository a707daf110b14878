# Writes OUTPUT with the commit of SOURCE_DIR, and only if it changed. Run by the build each time. Where the
# sources were copied without their history, whoever copied them says which it was: DENDRITE_COMMIT in the environment.
cmake_minimum_required(VERSION 3.22)
set(commit "unknown")
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(NOT failed AND described)
  set(commit ${described})
elseif(DEFINED ENV{DENDRITE_COMMIT})
  set(commit $ENV{DENDRITE_COMMIT})
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define DENDRITE_COMMIT \"${commit}\"\n")
