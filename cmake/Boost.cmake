# What the server needs: Boost.Beast and Asio, headers alone. Without them there is no server.
# DENDRITE_BUILD_SERVER is then off, with a message.
if(DENDRITE_BUILD_SERVER)
  find_path(DENDRITE_BOOST_INCLUDE boost/beast/http.hpp)
  mark_as_advanced(DENDRITE_BOOST_INCLUDE)
  set(_boost 0)
  if(DENDRITE_BOOST_INCLUDE)
    file(STRINGS ${DENDRITE_BOOST_INCLUDE}/boost/version.hpp _line REGEX "^#define BOOST_VERSION ")
    string(REGEX REPLACE "[^0-9]" "" _boost "${_line}")
  endif()
  if(_boost LESS 108100)
    message(STATUS "dendrite serve is left out: Boost 1.81 or newer was not found; expected "
                   "Debian's libboost1.81-dev or Ubuntu's libboost-dev (run `make deps`)")
    set(DENDRITE_BUILD_SERVER OFF)
  endif()
endif()
