# Installs the build tree BUILD into a prefix of its own under WORK, then configures, builds and runs the
# project SOURCE, which finds the package there. All models of the folder MODELS are installed, too.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT status EQUAL 0)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "${command}: ${status}\n${out}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
file(GLOB_RECURSE expected RELATIVE ${MODELS} ${MODELS}/dendrite-*/*)
file(GLOB_RECURSE installed RELATIVE ${WORK}/prefix/share/dendrite/models ${WORK}/prefix/share/dendrite/models/*)
list(REMOVE_ITEM expected ${installed})
if(expected OR NOT installed)
  message(FATAL_ERROR "not installed of ${MODELS}: ${expected}")
endif()
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${WORK}/prefix)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer ${MODEL})
