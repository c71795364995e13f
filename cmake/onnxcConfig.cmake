# find_package(onnxc): onnxc_add_model() and ONNXC_EXECUTABLE.

include("${CMAKE_CURRENT_LIST_DIR}/OnnxcModel.cmake")
if(NOT ONNXC_EXECUTABLE)
  set(onnxc_FOUND FALSE)
  set(onnxc_NOT_FOUND_MESSAGE "the program onnxc was not found; add it to the PATH or set ONNXC_EXECUTABLE")
endif()
