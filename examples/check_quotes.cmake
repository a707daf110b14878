# Checks that what the documents quote from the examples is what the examples say.
#   cmake -DROOT=... -P check_quotes.cmake
function(check document quote from)
  file(READ ${ROOT}/${document} text)
  string(FIND "${text}" "${quote}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "${document} does not quote ${from} as it is; copy it anew")
  endif()
endfunction()

# fork.cpp, all but its first line.
file(READ ${ROOT}/examples/fork.cpp text)
string(FIND "${text}" "#include" begin)
string(SUBSTRING "${text}" ${begin} -1 quote)
check(README.md "${quote}" examples/fork.cpp)

# What stands between the marks "// [part]" and "// [/part]" of an example.
function(check_part document example part)
  set(from examples/${example}.cpp)
  file(READ ${ROOT}/${from} text)
  set(mark "// [${part}]\n")
  string(FIND "${text}" "${mark}" begin)
  string(FIND "${text}" "// [/${part}]" end)
  if(begin EQUAL -1 OR end EQUAL -1)
    message(FATAL_ERROR "${from} has no [${part}] marks")
  endif()
  string(LENGTH "${mark}" length)
  math(EXPR begin "${begin} + ${length}")
  math(EXPR length "${end} - ${begin}")
  string(SUBSTRING "${text}" ${begin} ${length} quote)
  check(${document} "${quote}" ${from})
endfunction()

check_part(docs/recipes.md successive_halving strategy)
check_part(docs/recipes.md agents_on_threads agent)
check_part(docs/recipes.md event_loop beside)
check_part(docs/recipes.md event_loop turns)
