# A static library passes on what it links.
include(CMakeFindDependencyMacro)
find_dependency(Eigen3 3.4 NO_MODULE)
find_dependency(fmt 9)
find_dependency(nlohmann_json 3.11)
find_dependency(OpenMP COMPONENTS CXX)
include(${CMAKE_CURRENT_LIST_DIR}/SluiceTargets.cmake)
