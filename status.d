status.o: src/deploy/status.c src/base/banned.h src/conf/conf.h \
 src/base/base.h src/httpio/httpio.h src/http/http.h src/net/net.h \
 src/deploy/deploy_int.h src/check/check.h src/fit/fit.h \
 src/fleet/fleet.h src/model/model.h src/gguf/gguf.h src/hw/hw.h \
 src/ledger/ledger.h src/measure/measure.h src/store/store.h src/os/os.h \
 src/doctor/doctor.h src/engine/engine.h src/run/run.h src/unit/unit.h \
 src/deploy/deploy.h
src/base/banned.h:
src/conf/conf.h:
src/base/base.h:
src/httpio/httpio.h:
src/http/http.h:
src/net/net.h:
src/deploy/deploy_int.h:
src/check/check.h:
src/fit/fit.h:
src/fleet/fleet.h:
src/model/model.h:
src/gguf/gguf.h:
src/hw/hw.h:
src/ledger/ledger.h:
src/measure/measure.h:
src/store/store.h:
src/os/os.h:
src/doctor/doctor.h:
src/engine/engine.h:
src/run/run.h:
src/unit/unit.h:
src/deploy/deploy.h:
