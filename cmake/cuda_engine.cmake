# What the CUDA engine needs of the build: the kernels' headers as text inside the library, the folder
# of cubins compiled ahead, and the tool that fills it. No CUDA is needed, neither headers nor libraries.
set(cuda_root ${PROJECT_SOURCE_DIR}/src/cuda)
file(GLOB_RECURSE cuda_headers CONFIGURE_DEPENDS RELATIVE ${cuda_root} ${cuda_root}/*.cuh)
list(TRANSFORM cuda_headers PREPEND ${cuda_root}/ OUTPUT_VARIABLE cuda_header_files)
set(embedded_headers ${CMAKE_CURRENT_BINARY_DIR}/cuda/engine/embedded_headers.cpp)
add_custom_command(
    OUTPUT ${embedded_headers}
    COMMAND ${CMAKE_COMMAND} -DROOT=${cuda_root} "-DHEADERS=${cuda_headers}"
            -DOUTPUT=${embedded_headers} -P ${PROJECT_SOURCE_DIR}/cmake/embed_headers.cmake
    DEPENDS ${cuda_header_files} ${PROJECT_SOURCE_DIR}/cmake/embed_headers.cmake
    COMMENT "Embedding the CUDA kernels' headers" VERBATIM)
target_sources(sluice PRIVATE ${embedded_headers})
target_link_libraries(sluice PRIVATE ${CMAKE_DL_LIBS})
# What the host passes to kernels is declared in their headers, which include each other from here.
target_include_directories(sluice PRIVATE ${cuda_root})

set(SLUICE_CUBINS ${PROJECT_SOURCE_DIR}/data/cubins CACHE PATH
    "Folder of kernels compiled ahead (make cubins)")
set_source_files_properties(cuda/engine/prebuilt.cpp PROPERTIES
                            COMPILE_DEFINITIONS SLUICE_CUBINS="${SLUICE_CUBINS}")

add_executable(sluice_cubins EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tools/cubins.cpp)
set_target_properties(sluice_cubins PROPERTIES OUTPUT_NAME cubins
                      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
target_include_directories(sluice_cubins PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(sluice_cubins PRIVATE Sluice::sluice sluice_options fmt::fmt)
# The nvcc whose kernels tests judge.
file(STRINGS ${PROJECT_SOURCE_DIR}/scripts/cuda-tools.txt judged_nvcc REGEX "^nvidia-cuda-nvcc==")
string(REPLACE "nvidia-cuda-nvcc==" "" judged_nvcc ${judged_nvcc})
target_compile_definitions(sluice_cubins PRIVATE SLUICE_JUDGED_NVCC="${judged_nvcc}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             ${PROJECT_SOURCE_DIR}/scripts/cuda-tools.txt)
