# cmake -DFROM=FILE -DNAME=variable -DSPACE=namespace -DTO=FILE.cpp -P EmbedText.cmake: FILE's text as a
# std::string_view of that name in that namespace.
file(READ ${FROM} text)
file(WRITE ${TO} "#include <string_view>
namespace ${SPACE} {
extern const std::string_view ${NAME};
const std::string_view ${NAME} = R\"---(${text})---\";
}  // namespace ${SPACE}
")
