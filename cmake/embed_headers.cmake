# cmake -DROOT=<folder> "-DHEADERS=<paths below it>" -DOUTPUT=<file> -P embed_headers.cmake
#
# Writes a C++ file that holds the texts of the headers (src/cuda/engine/source.hpp declares it).
set(entries "")
foreach(header IN LISTS HEADERS)
    file(READ ${ROOT}/${header} text)
    if(text MATCHES "\\)cuh\"")
        message(FATAL_ERROR "${header} contains the delimiter of its embedding, )cuh\"")
    endif()
    string(APPEND entries "    {\"${header}\", R\"cuh(${text})cuh\"},\n")
endforeach()
file(WRITE ${OUTPUT} "// Written by embed_headers.cmake.
#include \"cuda/engine/source.hpp\"

namespace sluice::cuda {

namespace {

constexpr EmbeddedHeader kHeaders[] = {
${entries}};

}  // namespace

std::span<const EmbeddedHeader> embedded_headers() noexcept { return kHeaders; }

}  // namespace sluice::cuda
")
