# cmake -DFROM=FILE -DNAME=variable -DTO=FILE.cpp -P EmbedText.cmake: FILE's text as a
# std::string_view of that name in dendrite::cli.
file(READ ${FROM} text)
file(WRITE ${TO} "#include <string_view>
namespace dendrite::cli {
extern const std::string_view ${NAME};
const std::string_view ${NAME} = R\"---(${text})---\";
}  // namespace dendrite::cli
")
