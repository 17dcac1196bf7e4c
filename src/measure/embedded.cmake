# Builds the workloads, the version and the commit into the library. Both files are dependencies of
# the configure step: a new commit or an edited table configures anew.
set(SLUICE_COMMIT unknown)
find_package(Git QUIET)
if(GIT_FOUND AND EXISTS ${PROJECT_SOURCE_DIR}/.git)
    execute_process(COMMAND ${GIT_EXECUTABLE} describe --always --exclude=* --abbrev=12
                    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
                    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE
                    RESULT_VARIABLE failed ERROR_QUIET)
    if(NOT failed)
        execute_process(COMMAND ${GIT_EXECUTABLE} diff --quiet HEAD
                        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} RESULT_VARIABLE changed)
        set(SLUICE_COMMIT ${commit})
        if(changed)
            string(APPEND SLUICE_COMMIT "+")
        endif()
        if(EXISTS ${PROJECT_SOURCE_DIR}/.git/logs/HEAD)
            set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
                         ${PROJECT_SOURCE_DIR}/.git/logs/HEAD)
        endif()
    endif()
endif()

set(workloads ${PROJECT_SOURCE_DIR}/data/workloads.json)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${workloads})
file(READ ${workloads} SLUICE_WORKLOADS_JSON)
configure_file(${CMAKE_CURRENT_LIST_DIR}/embedded.cpp.in
               ${CMAKE_CURRENT_BINARY_DIR}/measure/embedded.cpp @ONLY)
target_sources(sluice PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/measure/embedded.cpp)
