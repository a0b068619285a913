// Search runs in a worker, which browsers refuse to pages that were opened as files. There, and only there, this takes its
// place: the worker's script runs in a hidden frame of the page, and messages are passed by events.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const answer = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inside.document.open();
      inside.document.write("<!doctype html><title>search</title>");
      inside.document.close();
      inside.postMessage = (data) => answer(data);
      inside.importScripts = (...urls) => Promise.all(urls.map((one) => this.load(inside, one)));
      this.load(inside, url).then(() => {
        this.inside = inside;
        for (const data of this.waiting) this.postMessage(data);
      });
    }

    load(inside, url) {
      return new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        script.src = new URL(url, location.href).href;
        script.onload = done;
        script.onerror = failed;
        inside.document.head.append(script);
      });
    }

    postMessage(data) {
      if (!this.inside) this.waiting.push(data);
      else this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {}
  };
}
