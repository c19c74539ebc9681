# What is installed, in three components: python goes into the wheel; native is a folder that runs on a machine with no
# Python (cmake --install build --prefix DIR --component native); development is what find_package(lockstep) needs.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

if(SKBUILD)
  install(TARGETS _core LIBRARY DESTINATION lockstep COMPONENT python)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_build.py DESTINATION lockstep COMPONENT python)
  install(TARGETS lockstep-native RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
endif()

# The program with every library that it needs but the C library's own, and the embedded checkpoint.
install(TARGETS lockstep-native RUNTIME_DEPENDENCY_SET native RUNTIME DESTINATION bin COMPONENT native)
install(RUNTIME_DEPENDENCY_SET native
        PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|pthread|rt|resolv|util)\\.so"
        DIRECTORIES "${TORCH_INSTALL_PREFIX}/lib"
        LIBRARY DESTINATION lib COMPONENT native)
install(DIRECTORY python_ref/lockstep/embedded DESTINATION share/lockstep COMPONENT native)

string(REGEX REPLACE "[+].*" "" LOCKSTEP_TORCH_RELEASE "${TORCH_VERSION}")
configure_file(cpp/lockstep/lockstepConfig.cmake.in lockstepConfig.cmake @ONLY)
write_basic_package_version_file(lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(TARGETS lockstep ARCHIVE DESTINATION lib COMPONENT development)
install(FILES cpp/lockstep/lockstep.h DESTINATION include/lockstep COMPONENT development)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/lockstepConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/lockstepConfigVersion.cmake
        DESTINATION lib/cmake/lockstep COMPONENT development)
