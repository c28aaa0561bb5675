# Installs what was built into an empty prefix and builds somebody else's project against it.
add_test(NAME install_consumer
         COMMAND ${PROJECT_SOURCE_DIR}/tests/system/install_test.sh ${PROJECT_BINARY_DIR} ${CMAKE_CXX_COMPILER}
                 "${GRADRAIL_SANITIZE}")
set_tests_properties(install_consumer PROPERTIES LABELS system TIMEOUT 300)
