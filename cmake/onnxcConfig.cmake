# find_package(onnxc PATHS <source tree>/cmake): the package as it stands in the source tree. What is installed is made from
# onnxcConfig.cmake.in.

include("${CMAKE_CURRENT_LIST_DIR}/OnnxcModel.cmake")
if(NOT ONNXC_EXECUTABLE)
  set(onnxc_FOUND FALSE)
  set(onnxc_NOT_FOUND_MESSAGE "the program onnxc was not found; add it to the PATH or set ONNXC_EXECUTABLE")
endif()
