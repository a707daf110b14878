# Writes OUTPUT with the commit of SOURCE_DIR, and only if it changed. Run by the build each time. Whoever copied the sources
# somewhere else, without their history or into another one, says which commit they are: DENDRITE_COMMIT in the environment.
cmake_minimum_required(VERSION 3.22)
set(commit "$ENV{DENDRITE_COMMIT}")
if(commit STREQUAL "")
  execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(commit STREQUAL "")
  set(commit "unknown")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define DENDRITE_COMMIT \"${commit}\"\n")
