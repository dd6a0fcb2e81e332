import os, time, sys
print("hello", os.environ["RANK"]); time.sleep(float(sys.argv[1]))
