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

# The strategy of successive_halving.cpp, between its marks.
file(READ ${ROOT}/examples/successive_halving.cpp text)
string(FIND "${text}" "// [strategy]\n" begin)
string(FIND "${text}" "// [/strategy]" end)
if(begin EQUAL -1 OR end EQUAL -1)
  message(FATAL_ERROR "examples/successive_halving.cpp has no [strategy] marks")
endif()
string(LENGTH "// [strategy]\n" mark)
math(EXPR begin "${begin} + ${mark}")
math(EXPR length "${end} - ${begin}")
string(SUBSTRING "${text}" ${begin} ${length} quote)
check(docs/recipes.md "${quote}" examples/successive_halving.cpp)
