// A page that is opened from a folder must not start a worker, so the search would not work. This class replaces Worker:
// it runs the script in a hidden frame instead. The name of this file tells the offline plugin not to load its own
// replacement, which comes from another host.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc =
        "<script>self.postMessage = data => parent.postMessage(data, '*')</script>" + `<script src="${url}"></script>`;
      this.frame = frame;
      this.loaded = new Promise((resolve) => frame.addEventListener("load", resolve));
      window.addEventListener("message", ({ source, data }) => {
        if (source === frame.contentWindow) this.dispatchEvent(new MessageEvent("message", { data }));
      });
      document.body.append(frame);
    }

    postMessage(data) {
      // The function of this window, because the script in the frame sees another one.
      this.loaded.then(() => window.postMessage.call(this.frame.contentWindow, data, "*"));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
